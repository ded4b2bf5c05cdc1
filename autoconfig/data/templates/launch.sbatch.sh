# a job that its time limit would cut saves and ends before it; submitted again, it goes on
if [ -n "$CHECKPOINT_DIR" ] && [ -n "${SLURM_JOB_END_TIME:-}" ]; then
    MINUTES_LEFT=$(((SLURM_JOB_END_TIME - $(date +%s)) / 60 - @SAVING@))
    if [ "$MINUTES_LEFT" -gt 0 ]; then ARGUMENTS+=(--exit-duration-in-mins "$MINUTES_LEFT"); fi
fi

MASTER_ADDR="${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}"
MASTER_PORT="${MASTER_PORT:-29500}"
export MASTER_ADDR MASTER_PORT
CONTAINER=()  # for srun with pyxis
if [ -n "$CONTAINER_IMAGE" ]; then
@MOUNTS@
    CONTAINER=(--container-image "$CONTAINER_IMAGE" --container-mounts "$CONTAINER_MOUNTS")
    CONTAINER+=(--container-workdir "$PWD")
fi

# shellcheck disable=SC2016  # expanded on each node, where SLURM_NODEID is that node's number
exec srun --kill-on-bad-exit=1 ${CONTAINER[@]+"${CONTAINER[@]}"} bash -c 'exec torchrun --nproc-per-node "@PER_NODE@" --nnodes "@NODES@" --node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"' \
    torchrun "$MEGATRON_PATH/@PROGRAM@" "${ARGUMENTS[@]}"
