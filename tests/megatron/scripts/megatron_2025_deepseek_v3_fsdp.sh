#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh (2025), re-typed; data, logging and schedule left out.
TP=${TP:-1}
EP=${EP:-8}
MBS=${MBS:-4}
GBS=${GBS:-2048}
USE_MEGATRON_FSDP=${USE_MEGATRON_FSDP:-1}
TRAINING="
    --tensor-model-parallel-size ${TP} --expert-model-parallel-size ${EP} --expert-tensor-parallel-size 1 --context-parallel-size 1
    --overlap-grad-reduce --overlap-param-gather --sequence-parallel --use-flash-attn --disable-bias-linear --use-distributed-optimizer
    --micro-batch-size ${MBS} --global-batch-size ${GBS}
    --recompute-granularity selective --recompute-modules mlp moe mla_up_proj layernorm
    --transformer-impl transformer_engine --seq-length 4096 --tokenizer-type HuggingFaceTokenizer
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128
    --max-position-embeddings 4096 --position-embedding-type rope --rotary-base 10000 --make-vocab-size-divisible-by 3232
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --untie-embeddings-and-output-weights
    --multi-latent-attention --attention-dropout 0.0 --hidden-dropout 0.0 --qk-layernorm
    --num-experts 256 --moe-layer-freq ([0]*3+[1]*58) --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
    --moe-router-topk 8 --moe-router-score-function sigmoid --moe-router-enable-expert-bias
    --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
    --mtp-num-layers 1 --bf16
"
if [ "${USE_MEGATRON_FSDP}" = 1 ]; then
    TRAINING="${TRAINING} --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor --init-model-with-meta-device"
fi
RUN="
cd ${MEGATRON_PATH};
python -u pretrain_gpt.py ${TRAINING}"
sbatch <<JOB
#SBATCH --nodes=${NODES}
srun bash -c "${RUN}"
JOB
