"""Programs around Hugging Face's Trainer: TRL, LLaMA-Factory, axolotl."""
