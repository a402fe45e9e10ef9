"""Muster's rendezvous for torchrun: a plugin for torchrun, and the launcher `muster torchrun`."""
