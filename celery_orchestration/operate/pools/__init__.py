"""The pools of ``orchestration_pools``: their work and their workers."""
