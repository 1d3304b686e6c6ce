"""Explanations of a similarity: which patch of one image matches which patch of another image, or which word of a text."""

from vitreous.pairs.explain_pair import explain_pair
from vitreous.pairs.pair_attribution import PairAttribution, TowerSide
from vitreous.pairs.prompts import prompt_target
from vitreous.pairs.text_tower import TextTower

__all__ = ["PairAttribution", "TextTower", "TowerSide", "explain_pair", "prompt_target"]
