"""Toxics: disturbances of the bytes between a client's socket and a server, named as in Toxiproxy."""

from segstore.server.toxics.models import TOXIC_MODELS, ActiveToxic, Milliseconds, Toxic, ToxicOptions
from segstore.server.toxics.toxics import NoSuchToxic, Toxics

__all__ = ["TOXIC_MODELS", "ActiveToxic", "Milliseconds", "NoSuchToxic", "Toxic", "ToxicOptions", "Toxics"]
