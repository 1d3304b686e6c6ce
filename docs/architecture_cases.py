"""Small random models of many families, each with inputs and a score, on which support of any vision model is tested."""

from __future__ import annotations

from huggingface_cases import HUGGING_FACE
from timm_cases import TIMM
from torchvision_cases import TORCHVISION

SMALL = (*TIMM, *HUGGING_FACE, *TORCHVISION)
