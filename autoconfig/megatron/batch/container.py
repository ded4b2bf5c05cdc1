"""What the container of a launch script must see."""

from __future__ import annotations

from autoconfig.specs.scenario import Scenario

_HELD = """\
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
}"""


def mount_lines(scenario: Scenario) -> list[str]:
    """Lines that add to CONTAINER_MOUNTS the working folder and every path outside of it that the job reads or writes. A path
    that is neither here nor mounted stops the script with its name; only Megatron-LM may lie in the image."""
    words = (
        ["DATA_PATH"]
        if scenario.model.encoder_num_layers
        else ["DATA_PATH", "TRAIN_DATA_PATH", "VALID_DATA_PATH", "TEST_DATA_PATH"]
    )
    tokenizer = "VOCAB_FILE" if scenario.model.encoder_num_layers else "TOKENIZER_MODEL"
    lines = [
        'CONTAINER_MOUNTS="$PWD:$PWD${CONTAINER_MOUNTS:+,$CONTAINER_MOUNTS}"',
        *_HELD.splitlines(),
        'if [ -e "$MEGATRON_PATH" ]; then see MEGATRON_PATH "$MEGATRON_PATH"; fi  # else it lies in the image',
        'see_written CHECKPOINT_DIR "$CHECKPOINT_DIR"',
        'see_written TENSORBOARD_DIR "$TENSORBOARD_DIR"',
        *(f'see_data {name} "${name}"' for name in words),
    ]
    if not scenario.model.encoder_num_layers:
        lines += [
            'see_written DATA_CACHE_PATH "$DATA_CACHE_PATH"',
            'if [ -n "$DATA_ARGS_PATH" ]; then',
            '    see DATA_ARGS_PATH "$DATA_ARGS_PATH"',
            '    if [ -r "$DATA_ARGS_PATH" ]; then see_data DATA_ARGS_PATH "$(cat -- "$DATA_ARGS_PATH")"; fi',
            "fi",
        ]
    return [*lines, f'case "${tokenizer}" in /* | ./* | ../*) see {tokenizer} "${tokenizer}" ;; esac']
