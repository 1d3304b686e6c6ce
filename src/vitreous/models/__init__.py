"""timm, Hugging Face and torchvision models seen as one thing: embed · blocks · head."""
