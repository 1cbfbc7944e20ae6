"""Adapting a pretrained network: head, freezing, schedules, LoRA, adapters, prefixes, and an audit of all that."""
