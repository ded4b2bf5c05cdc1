"""How many bytes bitsandbytes keeps of frozen weights and of moments."""

BNB_BLOCK, BNB_OUTER = 64, 256
"""bitsandbytes: weights that share an fp32 maximum; with double quantisation maxima (a byte each) that share one."""
FROZEN_BYTES = {
    "nf4": 0.5 + (1.0 + 4.0 / BNB_OUTER) / BNB_BLOCK,
    "nf4_single": 0.5 + 4.0 / BNB_BLOCK,
    "int8": 1.0,
    "fp8": 1.0,
}
"""Of a weight that bitsandbytes quantises: NF4 with its maxima quantised again (Dettmers et al. 2023, QLoRA, section 3) or in
fp32, and int8, which has an fp32 scale a row beside it. Code tables, 1,092 bytes a matrix with double quantisation and 64
without, are left out. Source: bitsandbytes 0.50, functional.py (quantize_4bit, int8_vectorwise_quant)."""
ROW_SCALES = frozenset({"int8", "fp8"})
"""Formats with an fp32 scale a row beside the weights; fp8: torchao's float8 weight-only (quantization/quant_api.py,
Float8WeightOnlyConfig), which no trainer's file here says."""
MOMENT_BYTES, MOMENT_SCALE = 1.0, 4.0 / 256
"""Of a moment in 8 bits, and of its share of an fp32 maximum that a block of 256 has. Tensors below 4,096 elements (biases,
norms of narrow models), which keep fp32, are left out.

Source: bitsandbytes 0.50, optim/optimizer.py (Optimizer2State.init_state).
"""
