CONTAINER_MOUNTS="$PWD:$PWD${CONTAINER_MOUNTS:+,$CONTAINER_MOUNTS}"
held() {  # whether the container sees a path: below $PWD, or below a target of CONTAINER_MOUNTS
    local mount target
    for mount in ${CONTAINER_MOUNTS//,/ }; do
        target="${mount#*:}"
        target="${target%%:*}"
        case "$1/" in "${target%/}"/*) return 0 ;; esac
    done
    return 1
}
see() {  # NAME PATH: mounts PATH where it is, unless the container sees it
    local path
    path="$(realpath -ms -- "$2")"
    if held "$path"; then return; fi
    if [ ! -e "$path" ]; then
        echo "$1: $path is not on this host, and no target of CONTAINER_MOUNTS holds it: mount it there, or set $1 right" >&2
        exit 1
    fi
    CONTAINER_MOUNTS="$CONTAINER_MOUNTS,$path:$path"
}
see_written() {  # NAME PATH: the same for a folder that the job writes, made if it is missing
    if [ -n "$2" ] && ! held "$(realpath -ms -- "$2")" && ! mkdir -p -- "$2"; then
        echo "$1: $2 cannot be made here, and what is written there would be lost with the container" >&2
        exit 1
    fi
    if [ -n "$2" ]; then see "$1" "$2"; fi
}
see_data() {  # NAME WORDS: the folders of the prefixes of a blend; its weights are no paths
    local word
    for word in $2; do
        case "$word" in */*) see "$1" "$(dirname -- "$word")" ;; esac
    done
}
if [ -e "$MEGATRON_PATH" ]; then see MEGATRON_PATH "$MEGATRON_PATH"; fi  # else it lies in the image
see_written CHECKPOINT_DIR "$CHECKPOINT_DIR"
see_written TENSORBOARD_DIR "$TENSORBOARD_DIR"
see_data DATA_PATH "$DATA_PATH"
@ENCODER!@see_data TRAIN_DATA_PATH "$TRAIN_DATA_PATH"
@ENCODER!@see_data VALID_DATA_PATH "$VALID_DATA_PATH"
@ENCODER!@see_data TEST_DATA_PATH "$TEST_DATA_PATH"
@ENCODER!@see_written DATA_CACHE_PATH "$DATA_CACHE_PATH"
@ENCODER!@if [ -n "$DATA_ARGS_PATH" ]; then
@ENCODER!@    see DATA_ARGS_PATH "$DATA_ARGS_PATH"
@ENCODER!@    if [ -r "$DATA_ARGS_PATH" ]; then see_data DATA_ARGS_PATH "$(cat -- "$DATA_ARGS_PATH")"; fi
@ENCODER!@fi
@ENCODER!@case "$TOKENIZER_MODEL" in /* | ./* | ../*) see TOKENIZER_MODEL "$TOKENIZER_MODEL" ;; esac
@ENCODER?@case "$VOCAB_FILE" in /* | ./* | ../*) see VOCAB_FILE "$VOCAB_FILE" ;; esac
