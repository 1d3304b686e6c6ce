"""Run a model on a batch of images: states and gradients of every block, and logits with patches removed."""
