#!/usr/bin/env bash
@DIRECTIVES@
@HEAD@
# CHECKPOINT_DIR, and its own LEARNING_RATE where it has one.
set -eu

# --- Yours to set, here or in the environment ---
MEGATRON_PATH="${MEGATRON_PATH:-./Megatron-LM}"  # a checkout of Megatron-LM (core_v0.19.x)
@ENCODER?@DATA_PATH="${DATA_PATH:?prefix of preprocessed data (.bin, .idx): this program has no mock data}"
@ENCODER?@VOCAB_FILE="${VOCAB_FILE:?vocabulary of the tokenizer}"
@ENCODER?@TOKENIZER_TYPE="${TOKENIZER_TYPE:-BertWordPieceLowerCase}"
@ENCODER?@export PYTHONPATH="$MEGATRON_PATH:${PYTHONPATH:-}"  # the program lies in examples/ and imports from the root
@ENCODER!@# prefix of preprocessed data (.bin, .idx), or a blend like "0.7 /data/a 0.3 /data/b"; empty: mock data
@ENCODER!@DATA_PATH="${DATA_PATH:-}"
@ENCODER!@TRAIN_DATA_PATH="${TRAIN_DATA_PATH:-}"  # in its place: one blend for each split, with the two below
@ENCODER!@VALID_DATA_PATH="${VALID_DATA_PATH:-}"
@ENCODER!@TEST_DATA_PATH="${TEST_DATA_PATH:-}"
@ENCODER!@DATA_ARGS_PATH="${DATA_ARGS_PATH:-}"  # in its place: a file that holds the words of a long blend
@ENCODER!@DATA_CACHE_PATH="${DATA_CACHE_PATH:-}"  # a folder that all nodes see, for the index of a blend
@ENCODER!@TOKENIZER_TYPE="${TOKENIZER_TYPE:-HuggingFaceTokenizer}"  # used with DATA_PATH
@ENCODER!@TOKENIZER_MODEL="${TOKENIZER_MODEL:-}"  # name or path of the tokenizer, used with DATA_PATH
CHECKPOINT_DIR="${CHECKPOINT_DIR:-}"  # empty: nothing is saved or loaded
@STEPS@
# @RATE_SOURCE@
LEARNING_RATE="${LEARNING_RATE:-@RATE@}"
# the first 375 million tokens (Brown et al. 2020, appendix B), a tenth of a short run
WARMUP_STEPS="${WARMUP_STEPS:-$((TRAIN_STEPS / 10 < @WARMUP@ ? TRAIN_STEPS / 10 : @WARMUP@))}"
EVAL_STEPS="${EVAL_STEPS:-0}"  # steps of an evaluation, every 1,000 steps
SAVE_INTERVAL="${SAVE_INTERVAL:-1000}"  # steps between checkpoints
TENSORBOARD_DIR="${TENSORBOARD_DIR:-}"
WANDB_PROJECT="${WANDB_PROJECT:-}"
WANDB_NAME="${WANDB_NAME:-${SLURM_JOB_NAME:-train}}"
CONTAINER_IMAGE="${CONTAINER_IMAGE:-}"  # with PyTorch and Transformer Engine; empty: no container
CONTAINER_MOUNTS="${CONTAINER_MOUNTS:-}"  # like /data:/data,/checkpoints:/checkpoints
@BASE_UNKNOWN?@ROTARY_BASE="${ROTARY_BASE:-10000}"  # Megatron's default: set your model's rope_theta
@TO_DECIDE@
@FUSES_ROPE?@# yes: the fused RoPE kernel, which is Transformer Engine's; no: where the job finds none
@FUSES_ROPE?@@HOST_RUNS?@ROPE_FUSION="${ROPE_FUSION:-${CONTAINER_IMAGE:+yes}}"  # without a container the host is asked
@FUSES_ROPE?@@HOST_RUNS?@ROPE_FUSION="${ROPE_FUSION:-$(python3 -c "import importlib.util as u; print('yes' if u.find_spec('transformer_engine') else 'no')" 2>/dev/null || true)}"
@FUSES_ROPE?@@HOST_RUNS!@ROPE_FUSION="${ROPE_FUSION:-yes}"
@PERMUTES?@PERMUTE_FUSION="${PERMUTE_FUSION:-yes}"  # tokens to experts by one kernel of Transformer Engine 2.1

@EXPORTS@
@GRAPHS!@# less fragmentation than the prediction takes
@GRAPHS!@export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"

@ARRAYS@
# --- Data, length of the run, checkpoints ---
@ENCODER?@# shellcheck disable=SC2206  # a blend is several words
@ENCODER?@DATA_ARGUMENTS=(--data-path $DATA_PATH --split '99,1,0' --tokenizer-type "$TOKENIZER_TYPE"
@ENCODER?@@SENTINELS?@    --vocab-file "$VOCAB_FILE" --vocab-size '@VOCABULARY@' --vocab-extra-ids '@SENTINELS@')
@ENCODER?@@SENTINELS!@    --vocab-file "$VOCAB_FILE" --vocab-size '@VOCABULARY@')
@ENCODER!@DATA_ARGUMENTS=(--mock-data --tokenizer-type 'NullTokenizer' --vocab-size '@VOCABULARY@')
@ENCODER!@# shellcheck disable=SC2206  # a blend is several words
@ENCODER!@if [ -n "$DATA_PATH" ]; then
@ENCODER!@    DATA_ARGUMENTS=(--data-path $DATA_PATH --split '99,1,0')
@ENCODER!@elif [ -n "$TRAIN_DATA_PATH" ]; then
@ENCODER!@    DATA_ARGUMENTS=(--train-data-path $TRAIN_DATA_PATH --valid-data-path $VALID_DATA_PATH --test-data-path $TEST_DATA_PATH)
@ENCODER!@elif [ -n "$DATA_ARGS_PATH" ]; then
@ENCODER!@    DATA_ARGUMENTS=(--data-args-path "$DATA_ARGS_PATH" --split '99,1,0')
@ENCODER!@else
@ENCODER!@    echo "smoke test: $TRAIN_STEPS steps on mock data (set DATA_PATH for a real run)" >&2
@ENCODER!@fi
@ENCODER!@if [ -n "$DATA_PATH$TRAIN_DATA_PATH$DATA_ARGS_PATH" ]; then
@ENCODER!@    DATA_ARGUMENTS+=(--tokenizer-type "$TOKENIZER_TYPE" --tokenizer-model "${TOKENIZER_MODEL:?give the tokenizer of the data, its name or path}")
@ENCODER!@fi
@ENCODER!@if [ -n "$DATA_CACHE_PATH" ]; then
@ENCODER!@    DATA_ARGUMENTS+=(--data-cache-path "$DATA_CACHE_PATH")
@ENCODER!@fi
@ENCODER!@@LOCAL!@DATA_ARGUMENTS+=(--no-create-attention-mask-in-dataloader)  # kernels need none
RUN_ARGUMENTS=(--train-iters "$TRAIN_STEPS" --lr "$LEARNING_RATE" --min-lr '0' --lr-decay-style 'cosine'
    --lr-warmup-iters "$WARMUP_STEPS" --eval-interval '1000' --eval-iters "$EVAL_STEPS" --log-interval '1'
    --log-throughput)
@RANKS?@RUN_ARGUMENTS+=(--distributed-timeout-minutes '@TIMEOUT@' --manual-gc --manual-gc-interval '@GC_INTERVAL@')
if [ -n "$TENSORBOARD_DIR" ]; then
    RUN_ARGUMENTS+=(--tensorboard-dir "$TENSORBOARD_DIR")
fi
if [ -n "$WANDB_PROJECT" ]; then
    RUN_ARGUMENTS+=(--wandb-project "$WANDB_PROJECT" --wandb-exp-name "$WANDB_NAME")
fi
@BASE_UNKNOWN?@RUN_ARGUMENTS+=(--rotary-base "$ROTARY_BASE")
@FUSES_ROPE?@ROPE_ARGUMENTS=()
@FUSES_ROPE?@if [ "$ROPE_FUSION" != "yes" ]; then
@FUSES_ROPE?@    ROPE_ARGUMENTS=(--no-rope-fusion)
@FUSES_ROPE?@fi
@PERMUTES?@if [ "$PERMUTE_FUSION" = "yes" ]; then
@PERMUTES?@    RUN_ARGUMENTS+=(--moe-permute-fusion)
@PERMUTES?@fi
CHECKPOINT_ARGUMENTS=()
if [ -n "$CHECKPOINT_DIR" ]; then
    CHECKPOINT_ARGUMENTS=(--save "$CHECKPOINT_DIR" --load "$CHECKPOINT_DIR" --save-interval "$SAVE_INTERVAL"
@FSDP?@        --ckpt-format 'torch_dist')
@FSDP!@        --ckpt-format 'torch_dist' --async-save --use-persistent-ckpt-worker)
fi

ARGUMENTS=(
@NAMES@
    "$@"
)

@LAUNCH@
