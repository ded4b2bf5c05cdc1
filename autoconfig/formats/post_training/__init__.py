"""Files of post-training frameworks: verl, NeMo-RL, OpenRLHF and TRL in both directions, slime and ms-swift read."""
