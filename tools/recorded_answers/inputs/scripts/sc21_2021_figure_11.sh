#!/bin/bash
# Facts of NVIDIA/Megatron-LM examples/academic_paper_scripts/sc21/run_figure_11.sh (2021), re-typed; data, logging and schedule left out.
PP=8
MBS=1
NLS=24
. `pwd`/CONFIG.sh
. `pwd`/SBATCH.sh
exit 0
