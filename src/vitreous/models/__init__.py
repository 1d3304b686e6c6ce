"""Adapters for timm, Hugging Face and torchvision models: each becomes a `ViT` of embedding, blocks and head."""
