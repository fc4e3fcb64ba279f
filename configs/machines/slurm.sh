#!/usr/bin/env bash
# Two machines with eight GPUs each under SLURM: sbatch configs/machines/slurm.sh. It may be preempted or run out of
# time: USR1 comes two minutes before, the run writes a checkpoint and ends with status 130, and is queued again.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" .venv/bin/python -m pipeline pretrain --model gpt2-small --corpus openwebtext --out runs/gpt2-small --resume \
    --config configs/machines/gpus-8.yaml --trainer.num_nodes=2
status=$?
if [ $status -eq 130 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
