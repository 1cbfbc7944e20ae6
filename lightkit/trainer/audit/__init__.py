"""Proof that training does what it says: of a fine-tuning phase by phase, and of any training from time to time."""
