#!/usr/bin/env bash
# Written by megatron-autoconfig
@LENGTHS@
# @NAME@, @ALGORITHM@ with verl @VERSION@ on @GPUS@ GPUs.
# Give MODEL (a checkpoint's folder or its name), TRAIN_FILES and VAL_FILES (parquet).
set -euo pipefail
@MODEL@
python3 -m verl.trainer.main_ppo \
  --config-name=@CONFIG@ \
  actor_rollout_ref.model.path="$MODEL" \
  data.train_files="${TRAIN_FILES:?give TRAIN_FILES}" \
  data.val_files="${VAL_FILES:?give VAL_FILES}" \
@TURNS?@  actor_rollout_ref.rollout.multi_turn.tool_config_path="${TOOL_CONFIG:?give TOOL_CONFIG, the file of tools}" \
@VALUES@
  "$@"
