# The form of NeMo 2's command line (nemo llm pretrain --factory RECIPE key=value), with a recipe of the published table.
nemo llm pretrain --factory llama3_8b_pretrain_config \
    trainer.num_nodes=1 trainer.devices=8 \
    trainer.strategy.tensor_model_parallel_size=2 trainer.strategy.pipeline_model_parallel_size=1 \
    trainer.strategy.context_parallel_size=1 trainer.strategy.sequence_parallel=true \
    data.micro_batch_size=1 data.global_batch_size=128 data.seq_length=8192
