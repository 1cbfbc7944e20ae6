"""What is put into a network: LoRA, adapters, prefixes and prompts, and the way back to the plain one."""
