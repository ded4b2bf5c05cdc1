#!/usr/bin/env bash
# Written by megatron-autoconfig
@LENGTHS@
# @NAME@, @ALGORITHM@ with OpenRLHF @VERSION@.
# Give MODEL, PROMPTS (a dataset) and REWARD (a reward model, or the address of one).
set -euo pipefail
@MODEL@
python3 -m openrlhf.cli.train_ppo_ray \
  --actor.model_name_or_path "$MODEL" \
  --data.prompt_dataset "${PROMPTS:?give PROMPTS}" \
  --reward.remote_url "${REWARD:?give REWARD}" \
@VALUES@
  "$@"
