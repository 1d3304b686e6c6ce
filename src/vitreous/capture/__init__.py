"""A batch of images in front of a model: what each layer holds, and what the model says when only some patches enter."""
