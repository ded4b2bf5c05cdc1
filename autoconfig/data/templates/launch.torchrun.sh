CONTAINER=()
if [ -n "$CONTAINER_IMAGE" ]; then
    CONTAINER=(docker run --rm --gpus all --ipc host --network host --ulimit memlock=-1 --ulimit stack=67108864
        --workdir "$PWD")
@MOUNTS@
    for name in @PASSED@; do CONTAINER+=(--env "$name"); done
    for mount in ${CONTAINER_MOUNTS//,/ }; do CONTAINER+=(--volume "$mount"); done
    CONTAINER+=("$CONTAINER_IMAGE")
fi

exec ${CONTAINER[@]+"${CONTAINER[@]}"} torchrun \
    --nproc-per-node "@PER_NODE@" \
    --nnodes "@NODES@" \
@NODES_BEYOND_ONE?@    --node-rank "${NODE_RANK:?set it to the number of this node, 0 to @NODES_BEYOND_ONE@}" \
@NODES_BEYOND_ONE?@    --master-addr "${MASTER_ADDR:?set it to the host name of node 0}" \
@NODES_BEYOND_ONE!@    --node-rank "${NODE_RANK:-0}" \
@NODES_BEYOND_ONE!@    --master-addr "${MASTER_ADDR:-localhost}" \
    --master-port "${MASTER_PORT:-29500}" \
    "$MEGATRON_PATH/@PROGRAM@" "${ARGUMENTS[@]}"
