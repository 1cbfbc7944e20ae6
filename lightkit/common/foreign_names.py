"""What Lightning, transformers, timm, Keras, fastai, skorch, Accelerate and ignite call what has another name here."""

from __future__ import annotations

_NAMES = {
    "trainer.epochs": "epoch max_epoch max_epochs n_epoch n_epochs nb_epoch num_epochs num_train_epochs total_epochs",
    "trainer.steps": "iterations max_iter max_iters max_steps max_train_steps num_steps num_training_steps total_steps",
    "trainer.validate_every": (
        "check_val_every_n_epoch eval_freq eval_interval val_check_interval val_interval validation_freq"
    ),
    "trainer.validate_every trainer.validate_unit=step": "eval_steps",
    "trainer.validate_unit": "eval_strategy evaluation_strategy",
    "trainer.test=best": "load_best_model_at_end restore_best_weights",
    "trainer.test": "do_predict",
    "trainer.find_lr=true": "auto_lr_find lr_find",
    "trainer=smoke": "fast_dev_run dry_run",
    "trainer=overfit": "overfit_batches",
    "trainer.nonfinite.action": "detect_anomaly terminate_on_nan",
    "trainer.callbacks": "hooks",
    "trainer.early_stopping.patience": (
        "early_stop early_stopping early_stopping_patience early_stopping_rounds earlystopping n_iter_no_change "
        "patience patience_epochs"
    ),
    "trainer.early_stopping.min_delta": "early_stopping_threshold early_stopping_min_delta min_delta",
    "trainer.ema.decay": "ema ema_decay ema_momentum model_ema model_ema_decay use_ema",
    "trainer.accumulate": (
        "accum_iter accumulate_grad_batches accumulation_steps grad_accum grad_accum_steps gradient_accumulation "
        "gradient_accumulation_steps num_accumulation_steps"
    ),
    "trainer.clip_norm": (
        "clip_grad clip_grad_norm clipnorm global_clipnorm grad_clip grad_clip_norm gradient_clip "
        "gradient_clip_val gradient_clipping max_grad_norm"
    ),
    "trainer.clip_value": "clip_grad_value clipvalue gradient_clip_value",
    "optim.lr": "base_lr init_lr initial_lr learning_rate learning_rate_init lr lr_base max_lr",
    "optim.betas": "adam_beta1 adam_beta2 beta_1 beta_2 opt_betas",
    "optim.eps": "adam_epsilon opt_eps",
    "optim=sgd optim.momentum": "momentum sgd_momentum",
    "optim.weight_decay": "l2 l2_reg wd weight_decay weight_decay_rate",
    "optim.no_decay": "filter_bias_and_bn no_weight_decay",
    "optim.layer_decay": "layer_decay layerwise_lr_decay llrd lr_layer_decay layer_lr_decay",
    "optim.rules": "param_groups paramwise_cfg",
    "optim": "opt opt_func optimizer optimizers",
    "scheduler": "lr_schedule lr_scheduler lr_scheduler_type sched schedule lr_policy",
    "scheduler.warmup_steps": "num_warmup_steps warmup warmup_iters warmup_steps",
    "scheduler.warmup_epochs": "warmup_t warmup_epochs",
    "data.batch_size": (
        "batch batchsize bs batch_size mini_batch_size per_device_train_batch_size per_gpu_train_batch_size "
        "train_batch_size iterator_train__batch_size samples_per_gpu"
    ),
    "data.eval_batch_size": (
        "eval_batch_size per_device_eval_batch_size val_batch_size validation_batch_size iterator_valid__batch_size"
    ),
    "data.num_workers": "dataloader_num_workers n_workers nw num_workers workers workers_per_gpu",
    "data.pin_memory": "dataloader_pin_memory pin_mem",
    "data.persistent_workers": "dataloader_persistent_workers",
    "data.prefetch_factor": "dataloader_prefetch_factor",
    "data.drop_last": "dataloader_drop_last",
    "data": "dataset data_module datamodule",
    "data.split.test": "test_size",
    "data.split.val": "val_size val_split validation_fraction validation_split valid_pct",
    "data.split.folds": "cv n_folds n_splits num_folds",
    "data.augment": "aug augmentation augmentations batch_tfms item_tfms transform transforms",
    "data.mixup.alpha": "mixup mixup_alpha",
    "data.mixup.probability": "mixup_prob",
    "data.normalize": "standardize",
    "loss": "criterion loss_fn loss_func loss_function",
    "loss.label_smoothing": "label_smoothing label_smoothing_factor smoothing",
    "loss.weight": "class_weight class_weights",
    "metrics.mode": "greater_is_better mode",
    "metrics.monitor": "eval_metric metric_for_best_model monitor",
    "metrics.val": "compute_metrics metric",
    "model": "arch architecture backbone module net network",
    "model.dropout": "drop drop_rate dropout dropout_rate p_dropout",
    "model.hidden": "hidden_layer_sizes hidden_sizes layer_sizes",
    "model.activation": "act_layer activation_fn",
    "finetune.weights.path": "checkpoint_path ckpt initial_checkpoint load_from model_name_or_path pretrained_path",
    "finetune.weights.strict=matching": "ignore_mismatched_sizes",
    "finetune=head": "freeze_backbone freeze_encoder",
    "finetune.freeze": "frozen_stages",
    "finetune=lora finetune.lora.alpha": "lora_alpha",
    "finetune=lora finetune.lora.dropout": "lora_dropout",
    "finetune=lora finetune.lora.rank": "lora_r lora_rank rank",
    "finetune=lora finetune.lora.match": "target_modules",
    "finetune=lora finetune.lora.rslora": "use_rslora",
    "finetune=prefix finetune.prefix.length": "num_virtual_tokens",
    "finetune.distill.weight": "distillation_alpha",
    "finetune.distill.temperature": "distillation_temperature",
    "finetune.distill.teacher": "teacher",
    "ensemble=voting ensemble.size": "n_estimators",
    "device": "accelerator",
    "device=cpu": "use_cpu no_cuda",
    "device=cuda": "use_cuda",
    "device.gpus": "device_ids devices gpu gpu_ids gpus n_gpu n_gpus num_gpus",
    "device.precision": "amp amp_dtype amp_level autocast dtype mixed_precision precision torch_dtype use_amp",
    "device.precision=bf16": "bf16",
    "device.precision=fp16": "fp16 half to_fp16",
    "device.precision=tf32": "tf32",
    "device.parallel": "distributed_backend distributed_type strategy",
    "device.parallel=fsdp": "fsdp",
    "device.nproc": "n_procs nproc_per_node num_processes world_size",
    "device.ddp.sync_batchnorm": "dist_bn sync_batchnorm sync_bn",
    "device.ddp.find_unused": "ddp_find_unused_parameters find_unused_parameters",
    "device.ddp.bucket_mib": "ddp_bucket_cap_mb",
    "device.ddp.timeout_seconds": "ddp_timeout",
    "device.cudnn_benchmark": "benchmark",
    "device.deterministic": "cudnn_deterministic deterministic full_determinism",
    "device.compile": "compile_model jit_compile torch_compile torch_compile_mode torchcompile",
    "device.channels_last": "memory_format",
    "device.matmul": "float32_matmul_precision matmul_precision",
    "device.activation_checkpointing": "grad_checkpointing gradient_checkpointing",
    "device.batch_size=auto": "auto_find_batch_size",
    "device.batch_size=max": "auto_scale_batch_size",
    "device.threads": "num_threads",
    "seed": "random_seed random_state seed_everything",
    "data.split.seed": "data_seed",
    "name": "exp_name experiment_name run_name",
    "checkpoint.enabled": "checkpointing enable_checkpointing save_strategy",
    "checkpoint.every_epochs": "checkpoint_freq every_n_epochs save_every save_freq",
    "checkpoint.every_steps": "every_n_train_steps save_steps",
    "checkpoint.keep_best": "save_best save_best_only save_top_k",
    "checkpoint.keep_last": "n_saved checkpoint_hist checkpoints_total_limit save_last save_total_limit",
    "resume.mode=auto": "auto_resume",
    "logger.every_steps": "log_every log_every_n_steps log_interval logging_steps print_freq",
    "logger.console.style": "enable_progress_bar disable_tqdm progress_bar verbose",
    "logger.console.every_seconds": "progress_bar_refresh_rate",
    "logger.profile": "profiler",
    "logger.tensorboard.enabled": "report_to tensorboard",
    "logger.tensorboard.graph": "log_graph",
}
"""Foreign names by the key, or the overrides, that mean the same."""
_TOLD = {
    "the classes are counted in the data, so nothing says how many there are": "num_classes n_classes num_labels",
    "the network gets the shape of its inputs from the data": "input_size input_shape",
    "warm-up is counted: scheduler.warmup_steps=N or scheduler.warmup_epochs=N": "warmup_ratio warmup_proportion",
    "torchrun starts lightkit on each of several machines": "num_nodes",
    "torchrun says which process this is": "local_rank",
    "device.parallel=fsdp shares out a model that is too large for one GPU": "deepspeed",
    "runs go to outputs/; hydra.run.dir=FOLDER names another folder": (
        "default_root_dir output_dir save_dir log_dir logging_dir"
    ),
    "each run has a folder of its own, and nothing is written over": "overwrite_output_dir",
    "`lightkit train` trains, and `lightkit eval RUN` measures": "do_train",
    "validation belongs to training, and `lightkit eval RUN` measures a finished run": "do_eval",
    "`trainer=smoke` tries training, validation and test before a long run": "num_sanity_val_steps",
    "the validation split is always used as a whole; data.split.val is its share of the rows": "limit_val_batches",
    "the test split is always used as a whole; data.split.test is its share of the rows": "limit_test_batches",
    "an epoch is all training rows once; trainer.steps=N ends a run after N steps": "steps_per_epoch",
    "training rows are drawn anew in each epoch, and those of validation and test never": "shuffle",
    "`lightkit summary` prints the layers of a model": "enable_model_summary",
    "checkpoints hold all that a resume needs; `lightkit ckpt` takes the weights out": "save_weights_only",
    "`lightkit ckpt convert` writes weights for other programs": "push_to_hub",
    "curves are in TensorBoard (`lightkit board`), and all values in metrics.jsonl": "wandb use_wandb",
    "trainer.ema.decay=0.999 averages weights, and so do ensemble=snapshot and `lightkit ckpt`": (
        "stochastic_weight_avg swa"
    ),
    "a run has a number of epochs or steps, and no limit of time; one that is stopped goes on with `lightkit resume`": (
        "max_time"
    ),
    "data.split.limit=N takes N training rows at most": "limit_train_batches max_train_samples",
    "data.mixup.alpha=0.2 mixes whole samples; a transform of your own goes to data.augment": "cutmix cutmix_alpha",
    "trainer.clip_norm limits the norm of the gradients, trainer.clip_value each of their values": (
        "gradient_clip_algorithm clip_mode"
    ),
    "scheduler.floor is the smallest learning rate, as a share of optim.lr": "eta_min lr_min min_lr",
    "`lightkit resume RUN` goes on with a run; resume.file=FILE with a checkpoint of another program": (
        "resume_checkpoint resume_from resume_from_checkpoint ckpt_path"
    ),
}
"""Foreign names without such a key, by what is done here instead."""
KEYS = {name: key for key, names in _NAMES.items() for name in names.split()}
"""The full key that means the same, or the overrides to type, by the foreign name."""
WORDS = {name: told for told, names in _TOLD.items() for name in names.split()}
"""What is done here in place of what has no key, by the foreign name."""


def meaning(key: str) -> str | None:
    """Say what a key of another framework means here.

    Args:
        key: As it was typed; its last part counts.

    Returns:
        The text of a fix; None for a name that is not known.
    """
    name = key.rpartition(".")[2].lower()
    meant = KEYS.get(name)
    if meant is None:
        return WORDS.get(name)
    return f"did you mean {meant}?" if meant != key else None


def own_name(name: str) -> str | None:
    """Return the last part of the key that means the same as a name; None where there is no such key."""
    meant = KEYS.get(name.lower(), "").rpartition(" ")[2]
    key, _, value = meant.partition("=")
    is_option = value and "." not in key
    return None if is_option else key.rpartition(".")[2] or None
