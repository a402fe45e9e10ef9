"""Muster's rendezvous for those who keep torchrun: a plugin for it, and a launcher around it."""
