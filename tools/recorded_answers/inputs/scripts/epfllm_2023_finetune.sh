#!/bin/bash
# Facts of epfLLM/Megatron-LLM examples/finetune.sh (0e2a5b17), re-typed; data, logging and schedule left out.
SIZE=7
TP=8
PP=1
GPUS_PER_NODE=8
MICRO_BATCH=1
GLOBAL_BATCH=12
N_NODES=1
SEQ_LEN=none
help () {
	echo "Usage: $0 <gpt/llama/llama2/falcon> ..."
}
if [[ $# = 1 ]] && [[ $1 = "-h" ]] || [[ $1 = "--help" ]]; then
	help
	exit 0
elif [[ $# = 0 ]]; then
	help
	exit 1
fi
MODEL=$1
shift
while [[ $# -gt 0 ]]; do
	case $1 in
		--tp) TP="$2"; shift; shift;;
		*) echo unknown argument $1; help; exit 1;;
	esac
done
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $N_NODES --node_rank
                  0 --master_addr localhost --master_port 6000"
if [[ $MODEL = llama ]] || [[ $MODEL = llama2 ]]; then
	EXTRA_ARGS="--vocab_file=tokenizer.model --use_rms_norm
	            --glu_activation swiglu --no_tie_embed_logits"
	if [[ $SEQ_LEN = none ]]; then
		SEQ_LEN=4096
	fi
	if (( $SIZE > 13 )); then
		LR="1.5e-4"
	fi
elif [[ $MODEL = gpt ]]; then
	EXTRA_ARGS="--num_layers 4 --hidden_size 512 --num_attention_heads 8"
	if [[ $SEQ_LEN = none ]]; then
		SEQ_LEN=2048
	fi
else
	echo "Model should be either gpt, llama or falcon, not $MODEL"
	exit 1
fi
COMMON_ARGS="--use_flash_attn --no_bias_gelu_fusion
	     --seq_length $SEQ_LEN --max_position_embeddings $SEQ_LEN
             --hidden_dropout 0.0 --position_embedding_type rotary
	     --no_bias_dropout_fusion --use_checkpoint_args
	     --attention_dropout 0.0
	     --weight_decay 0.1 --sequence_parallel --recompute_granularity selective"
CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_NUM_THREADS=16 torchrun $DISTRIBUTED_ARGS finetune.py \
       --tensor_model_parallel_size $TP \
       --pipeline_model_parallel_size $PP  \
       --load checkpoint \
       --model_name $MODEL \
       --bf16 \
       --global_batch_size $GLOBAL_BATCH \
       --micro_batch_size $MICRO_BATCH \
       --num_workers=2 \
       $EXTRA_ARGS \
       $COMMON_ARGS
