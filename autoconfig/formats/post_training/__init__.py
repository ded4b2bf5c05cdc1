"""Files of post-training frameworks, both directions: verl, NeMo-RL, OpenRLHF, TRL."""
