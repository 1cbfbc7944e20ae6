"""What is wrong with values and overrides, and what a report says of each; and what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lightkit.config import compose

Report = Callable[..., str]

# Overrides of the toy project, and behind the arrow what the report says; where it names no number there is 1 problem.
BAD = r"""
optim.lrr=0.1 => optim.lrr: torch.optim.SGD takes no such argument | did you mean optim.lr?
trainer.epoch=3 => trainer.epoch: unknown key | did you mean trainer.epochs?
epochs=3 => epochs: unknown key | did you mean trainer.epochs?
sede=3 => sede: unknown key | did you mean seed?
trainer.ema.dekay=0.9 => trainer.ema.dekay: unknown key | did you mean trainer.ema.decay?
data.dataset.row=3 => data.dataset.row: toy.Data takes no such argument | did you mean data.dataset.rows?
data.augment=[{_target_: toy.Noise, scael: 1}] => data.augment[0].scael: toy.Noise takes no such argument
data.augment=[{_target_: toy.Nois}] => data.augment[0]._target_: toy.Nois does not exist | toy.Noise?
data.augment=[{scale: 1}] => data.augment[0]._target_: missing
data.augment=[3] => data.augment[0]: wrong type | a mapping with `_target_`
metrics.val.f1._target_=torchmetrics.F1Scor => torchmetrics.F1Scor does not exist | torchmetrics.F1Score?
metrics._target_=toy.Net => metrics._target_: unknown key: nothing is built from this node | monitor, test
metrics.monitor=val/acuracy => no metric of that name is measured | nearest: val/accuracy
metrics.monitor=accuracy => metrics.monitor: no metric of that name is measured
metrics.monitor=val/loss/cat => no metric of that name is measured | nearest: val/loss
metrics.monitor=test/accuracy metrics.test.accuracy=${metrics.val.accuracy} => no metric of that name is measured
metrics.val.acuracy.average=micro => metrics.val.acuracy: unknown name | did you mean metrics.val.accuracy?
model._target_=toy.Nett => model._target_: toy.Nett does not exist | did you mean toy.Net?
model._target_=toi.Net => model._target_: toi.Net does not exist: there is no such module
model._target_=Net => model._target_: Net does not exist: there is no such module
model._target_=torch => a module is not something to build
model._target_=3 => model._target_: wrong type
model=any => model._target_: a value is missing | '???'
model=any model._target_=5€ => needs quotes
model.hidden=3 => model.hidden: wrong type | a list (a whole number each) | write [3]
model.body={_target_: toy.Net, hiden: [1]} => model.body.hiden: toy.Net takes no such argument
model.body=[{_target_: toy.Noise, scale: loud}] => model.body[0].scale: wrong type | 'loud'
model._target_=toy.Wrapped model.hiden=[1] => did you mean model.hidden?
metrics.val.accuracy.sync_on_computee=false => takes no such argument
optim.lr='0.1' => optim.lr: wrong type | write 0.1 without quotes
optim.lr=fast => optim.lr: wrong type | a number | 'fast'
optim.lr=null => optim.lr: wrong type | received: 'null'
optim.lr=[1] => expected: a number
optim.lr=0 => optim.lr: out of range | above 0 | freeze
optim.lr=-1 => optim.lr: out of range | optim.lr=1, without the sign
optim.lr=nan => optim.lr: out of range | at:       command line: optim.lr=nan | and finite
optim.lr={_target_: torch.tensor, data: 0.1} => optim.lr: wrong type | expected: a number
optim.nesterov='true' => optim.nesterov: wrong type | without quotes
optim=adam optim.betas=[0.9] => expected: a list of 2 (a number each)
optim=adam optim.betas=[0.9,1] => optim.betas[1]: out of range | command line: optim.betas=[0.9,1]
optim.rules=[{match: head.*, lr: 0}] => optim.rules[0].lr: out of range | freeze
optim.rules=[{lr: 0.1}] => optim.rules[0].match: missing
optim.rules=[{match: a, lrscale: 2}] => optim.rules[0].lrscale: unknown key | optim.rules[0].lr_scale?
scheduler.warmpu=1 => scheduler.warmpu: toy.Schedule takes no such argument | scheduler.warmup?
scheduler._target_=torch.optim.lr_scheduler.StepLR => goes inside of scheduler=torch | _partial_: true
trainer.task._target_=toy.Task.mak => the class Task has no method of that name
trainer.task={_target_: toy.Task.make} => trainer.task.weight: missing: toy.Task.make needs it
trainer.callbacks.mine.weight=3 => trainer.callbacks.mine._target_: missing
trainer.epochs=1.0 => trainer.epochs: wrong type | write 1
trainer.epochs=${name} => trainer.epochs: wrong type | 'toy'
trainer.epochs=null => trainer.epochs: training has no end
trainer.watch=3 => fix:      its keys are trainer.watch.every, trainer.watch.action
trainer=3 => no such option | default
data.split={by: file, val: 0.5, test: 0.5} => data.split: val and test leave no training rows
data.split={by: fold, fold: 5} => data.split.fold: there is no such fold | 0 to 4
data.split=[1] => data.split: wrong type | expected: a mapping | received: 'a list'
data.augment={a: 1} => data.augment: wrong type | expected: a list | received: 'a mapping'
seed=??? => seed: a value is missing
name=a/b => name: can't be part of a folder's name
extra.a=${trainer.epoch} => extra.a: the interpolation can't be resolved | ${trainer.epochs}?
extra.a=${extra} => extra.a: the interpolation can't be resolved
extra.a=${extra.b} extra.b=${extra.a} => extra.a: refers to itself: extra.a → extra.b → extra.a
seed=${oc.env:LIGHTKIT_NOT_SET} => seed: the environment variable | export LIGHTKIT_NOT_SET=VALUE
seed=${nope:1} => seed: the interpolation can't be resolved
~optim._target_ => optim._target_: missing
~data => data: missing
~data.dataset.rows => data.dataset.rows: missing: toy.Data needs it | command line: ~data.dataset.rows
~model.hiden => there is nothing of that name to remove | ~model.hidden
optim=sgdd => optim: no such option | adam | fix:      optim=sgd | command line: optim=sgdd
optim=adamm optim.betas=[0.9,0.99] => no such option
optim=null => optim: an option is missing
experiment=nope model.size=3 => experiment: no such option
optim/rules=a => there is no such group
optim.lr=0.1,0.2 => several runs, which wants -m
optim.lr => this override can't be read
trainer.early_stopping.target=nan => trainer.early_stopping.target: out of range | a number, and finite
optim.lr={ => this override can't be read
name=5€ => '€' needs quotes around the value | fix:      'name="5€"'
hydra.run.dri=/tmp/x => hydra.run.dri
optim._tagret_=toy.Net => torch.optim.SGD takes no such argument | did you mean optim._target_?
optim._target_= => is not a dotted path
loss.reduction=none => a loss is the mean over the samples | fix:      loss.reduction=mean
optim.params=[1] => optim.params: this is filled in | remove it: ~optim.params
scheduler.optimizer=3 => scheduler.optimizer: this is filled in
trainer.epochs[0]=1 => what is before the = is no key
device.name=cdua => device.name: no such device | command line: device.name=cdua | nearest: cuda
device.name='cuda:x' => no such device
optim.learning_rate=0.1 => fix:      did you mean optim.lr?
trainer.max_epochs=3 => fix:      did you mean trainer.epochs?
data.bs=3 => fix:      did you mean data.batch_size?
оptim.lr=0.1 => 'о' is CYRILLIC SMALL LETTER O, not 'o', which it looks like
optim.lr=−0.1 => fix:      optim.lr=-0.1
optim.lr='−0.1' => write -0.1
+key=1 => a value of your own goes below `extra`: extra.key=VALUE
mlp.hidden=[3] => fix:      model=mlp model.hidden=[3]
device=gpu => fix:      device=cuda
device=cuda:1 => fix:      device=cuda device.name=cuda:1
loss.weight=[1,a] => expected: a list of numbers or a `_target_` or null
optim.lr=0,001 => optim.lr=0.001, with a point; a list is optim.lr=[0,001]; for several runs add -m
model.hidden=64,32 => a list is model.hidden=[64,32]; for several runs add -m
optim.betas=0,9 => a list is optim.betas=[0,9]
seed=0,1 => add -m, or for a list write seed=[…]
optim.lr:_0,001 => fix:      optim.lr=0.001
trainer.epochs: => fix:      trainer.epochs=VALUE
sweep=optuna => fix:      hydra/sweeper=optuna
sweep=slurm => fix:      sweep.engine=slurm
sweep=hyperband => fix:      sweep.halving.method=hyperband
launcher=submitit => fix:      sweep.engine=slurm
launcher=vectorized => fix:      hydra/launcher=vectorized
finetune=[head,lroa] finetune.lora.rank=0 => received: 'lroa' | nearest: lora | fix:      finetune=[head,lora]
finetune=[haed,lroa] => 'haed' | 'lroa' | finetune=[head,lora] | 2 problems found
finetune=[head,nothing_like_it] => 'nothing_like_it' | `lightkit config finetune` lists the choices
finetune=[] => an option is missing | adapter
finetune=head,lora => several runs, which wants -m | for options that go together write finetune=[…]
finetune.train=[@head,re:layer[34]] => fix:      'finetune.train=["@head","re:layer[34]"]'
finetune.train=['re:^a',re:^b] => fix:      'finetune.train=["re:^a","re:^b"]'
trust=[a b] => trust[0]: can't be trusted | the dotted path of a package, module, class or function
trust=['*'] => trust[0]: can't be trusted | '*'
trust=[''] => trust[0]: can't be trusted
trust=math => trust: wrong type | write [math]
trust=[3] => trust[0]: wrong type
model._target_=torch.optim.SGD => model._target_: a class of another kind | a network or layer (torch.nn.Module)
| fix:      optim._target_=torch.optim.SGD
model._target_=torch.optim.lr_scheduler.StepLR => a network or layer | scheduler=torch scheduler.scheduler._target_=
trainer.task._target_=toy.Net => expected: a task (lightkit.trainer.Task) | fix:      model._target_=toy.Net
trainer.callbacks.x._target_=torch.nn.ReLU => expected: a callback (lightkit.trainer.Callback) | model._target_=torch
loss._target_=torch.nn.Linear => called with the output and the target | fix:      model._target_=torch.nn.Linear
metrics.val.f1._target_=torch.nn.MSELoss => a metric (torchmetrics.Metric) | fix:      loss._target_=torch.nn.MSELoss
optim._target_=torchmetrics.MeanMetric => an optimizer | metrics.val.NAME._target_=torchmetrics.MeanMetric
ensemble.size=3 => fix:      ensemble=voting ensemble.size=3; also of adversarial, bagging
model.channels=[3] => fix:      model=cnn model.channels=[3]
scheduler.gamma=0.5 => fix:      scheduler=step scheduler.gamma=0.5
model.zebra=1 => fix:      remove it: ~model.zebra
hydra.nokey=1 => hydra.nokey: unknown key | lightkit train --cfg hydra
extra.x='${hydra:job.num}' => jobs have numbers: add -m
extra.x='${hydra:runtime.output_dir}' => its folder, which is chosen later
extra.x='a-${hydra:job.override_dirname}' => exclude_keys
extra.x='${hydra:nothing}' => Hydra has no such value here
"""
FINETUNING = r"""
finetune.freze=[a] => finetune.freze: unknown key | did you mean finetune.freeze?
finetune.freeze=layer1 => finetune.freeze: wrong type | write [layer1]
finetune.freeze=[''] => finetune.freeze[0]: an empty pattern matches nothing
finetune.freeze=['re:'] => finetune.freeze[0]: an empty expression matches everything | `*`
finetune.freeze=[a,'re:('] => finetune.freeze[1]: not a regular expression: missing )
finetune.freeze=[@haed] => finetune.freeze[0]: there is no such label | nearest: @head
finetune.freeze=[@tuned] => finetune.freeze[0]: what LoRA | finetune.schedule freezes it later
finetune.freeze=[*] => finetune.freeze: everything is frozen | finetune.train=[@head]
finetune.freeze=[@head,@body] => finetune.freeze: everything is frozen
finetune.freeze=[*] finetune.train=3 => finetune.train: wrong type
finetune.head.lr=1 finetune.head.lr_scale=2 => finetune.head: sets either lr or | lr: 1, lr_scale: 2
finetune.schedule=[{unfreeze: [a]}] => finetune.schedule[0]: this is to happen at no moment
finetune.schedule=[{epoch: 1, step: 1, freeze: [a]}] => to happen at two moments | epoch and step
finetune.schedule=[{epoch: 1}] => finetune.schedule[0]: nothing begins or stops to train here
finetune.schedule=[{step: 1, freeze: [a, b], unfreeze: [b]}] => frozen and unfrozen at once | received: 'b'
finetune.schedule=[{epoch: -1, freeze: [a]}] => finetune.schedule[0].epoch: out of range | at least 0
finetune.schedule=[{epoch: 1, freeze: [@nrom]}] => finetune.schedule[0].freeze[0]: there is no such label
finetune.schedule=[{epoch: 20, freeze: [a]}] => after the last epoch | at most 19 | trainer.epochs=21
~trainer.epochs finetune.schedule=[{epoch: 20, freeze: [a]}] => after the last epoch
trainer.epochs=0 finetune.schedule=[{epoch: 20, freeze: [a]}] => trainer.epochs: out of range
trainer.steps=50 finetune.schedule=[{step: 50, freeze: [a]}] => after the last step | trainer.steps=51
finetune.schedule=[{epoch: '${nope}', freeze: [a]}] finetune.weights.path='${nope}' => can't be resolved | 2 problems
finetune=gradual finetune.gradual.share=0 => finetune.gradual.share: out of range | above 0, at most 1
finetune.gradual.every_steps=1 => finetune.gradual: nothing is frozen that could be unfrozen
finetune.freeze=[@body] finetune.gradual.every_epochs=1 finetune.gradual.every_steps=2
| => finetune.gradual: the distance is given twice | finetune.gradual.every_steps=null
finetune=gradual finetune.gradual.first=2 => finetune.gradual.first: share spreads the unfreezings
finetune.freeze=[a] finetune.gradual.every_epochs=20 => finetune.gradual.every_epochs: this comes after the
finetune.freeze=[a] finetune.gradual.every_epochs=1 finetune.gradual.first=20 => first: this comes after the
optim.rules=[{match: [], lr: 1}] => optim.rules[0].match: a rule for nothing
optim.rules=[{match: [3], lr: 1}] => optim.rules[0].match: wrong type | text or a list
optim.rules=[{match: [a, 're:['], lr: 1}] => optim.rules[0].match[1]: not a regular expression
optim.rules=[{match: a, lr: 0}] => optim.rules[0].lr: out of range | add allow_zero: true to the rule
optim.rules=[{match: a, lr: -1, allow_zero: true}] => optim.rules[0].lr: out of range
optim.rules=[{match: a, lr: false, allow_zero: true}] => optim.rules[0].lr: wrong type
optim.rules=[{match: a, lr: 1, lr_scale: 1}] => optim.rules[0]: sets either lr or lr_scale
optim.rules=[{match: @heda, lr: 1}] => optim.rules[0].match: there is no such label | @head
finetune.rules=[{match: [3], lr: 1}] => optim.rules[0].match: wrong type
finetune.slices=[0,1] => finetune.slices[0]: out of range | freeze them instead
finetune.layer_decay=0.5 finetune.slices=[1] => slices: the rates of the layers | finetune.slices=[]
finetune.layer_decay=0.5 optim.layer_decay=0.6 => set twice | finetune.layer_decay and optim.layer_decay
finetune.slices=[1] optim.layer_decay=0.5 => finetune.slices: the rates of the layers are set twice
finetune.lora.match=[@norm] => finetune.lora.match[0]: @norm stands for parameters, not for layers
finetune.lora.ranks={a: 4} => finetune.lora.ranks: ranks for layers, but no layer gets a LoRA
finetune=lora finetune.lora.ranks={a.*: 0} => finetune.lora.ranks.a.*: out of range | at least 1
finetune=lora finetune.lora.ranks={@cnov: 2} => finetune.lora.ranks.@cnov: there is no such label
finetune.prefix.kind=prompt => finetune.prefix.kind: unknown key | finetune=prefix, or finetune=lora
finetune.peft.r=8 => finetune.peft._target_: missing
finetune.peft={_target_: toy.anything, megatron_core: os} => finetune.peft.megatron_core: this names a module
finetune=lora finetune.peft._target_=toy.anything => finetune.peft: LoRA of our own | finetune.lora.match=[]
finetune.distill.teacher=experiments => finetune.distill.teacher: not the folder of a run: it has no
finetune.distill.teacher=nowhere => finetune.distill.teacher: there is no such file or folder
finetune.weights.path=toy.pt => finetune.weights.path: there is no such file | nearest: toy.py
finetune.weights.path=far/away.pt => there is no such file or folder: there is no folder far
finetune.weights.path='' => finetune.weights.path: an empty path | or null
finetune.weights.adapter=conf/adapter.pt => finetune.weights.adapter: there is no such | an adapter file
"""
RELATIONS = r"""
device.gpus=[] => device.gpus: this chooses no GPU | a list of GPU numbers such as [0, 2], or of UUIDs
device.gpus=[0,0] => device.gpus: a GPU is named twice
device.gpus=[-1] => device.gpus: not the numbers or UUIDs of GPUs
device.gpus=freest => device.gpus: not a choice of GPUs | received: 'freest'
device.gpus=auto:2 device.name=cuda:2 => device.name: device.gpus=auto:2 leaves 2 to see
device.gpus=[5] device.name=cuda:5 => device.gpus=[5] leaves 1 to see | device.name=cuda is the
device.precision=fp64 device=mps => device.precision: Apple's GPUs have no float64
device.precision=tf32 device.matmul=highest => device.matmul: this is not what | device.matmul=auto
device.deterministic=true device.cudnn_benchmark=true => device.cudnn_benchmark: taking the fastest
| device.cudnn_benchmark=false or device.deterministic=false
device.deterministic=true device.compile=max-autotune => device.compile: the kernels are chosen by timing them
device.parallel=dp device.compile=default device.cuda_graphs=true => device.compile: this does not go with DataParallel
| device.cuda_graphs: this does | cuda_graphs=false | 2 problems found
device.optimizer=fused optim=rmsprop => torch.optim.RMSprop has none | choices:  auto, foreach,
device.optimizer=loop +optim.fused=true => device.optimizer: optim.fused chooses as well
device.activation_checkpointing=['re:('] => device.activation_checkpointing[0]: not a regular
device.dp_output=1 => device.dp_output: only device.parallel=dp joins | device.parallel=dp or
device.cudnn=false device.cudnn_benchmark=true => device.cudnn_benchmark: cuDNN is not used
trainer.clip_type=1 => trainer.clip_type: this norm limits nothing | trainer.clip_norm=1.0
trainer.early_stopping.from_epoch=3 => trainer.early_stopping.from_epoch: nothing ends training early | patience=5
trainer.swa.from_epoch=3 trainer.ema.decay=0.9 => trainer.swa.from_epoch: trainer.ema.decay averages | received: 3
trainer.swa.from_epoch=3 ensemble=snapshot trainer.epochs=10 => trainer.swa.from_epoch: members are taken from one
trainer.clip_type=0 trainer.clip_norm=1 => trainer.clip_type: no such norm | above 0, or inf
trainer.clip_type=two trainer.clip_norm=1 => trainer.clip_type: no such norm | received: 'two'
device.nproc=2 => device.nproc: several processes share a run only with device.parallel=ddp
device.nproc=2 device.parallel=dp => device.nproc: several processes share
device=ddp device.name=cuda:1 => device.name: one device cannot be that of several processes
device=ddp device.name=mps => device.name: one device cannot be
device=ddp device.nproc=9 => data.batch_size: 9 processes | at least 9
device=ddp data.eval_batch_size=1 => data.eval_batch_size: 2 processes (device.nproc) share each
device=ddp device.gpus=[MIG-1,MIG-2] => device.gpus: 2 processes (device.nproc) need a whole GPU each
device.wait=true => device.wait: device.gpus=null takes all GPUs | fix:      device.gpus=auto:1
device=ddp device.gpus=[0,1] device.wait=true => device.wait: each process would wait for itself
device.ddp.static_graph=true trainer.accumulate=2 => static_graph: PyTorch cannot add up gradients over
device=fsdp device.compile=default => device.compile: not with fsdp | : code is compiled for a whole
device=fsdp device.channels_last=true => device.channels_last: not with fsdp | usual order in memory
device=fsdp device.cuda_graphs=true => device.cuda_graphs: not with fsdp | : kernels are recorded
device=fsdp finetune.peft={_target_: toy.anything} => finetune.peft: not with fsdp: the layers of peft
device=fsdp optim=adamw8bit => optim._target_: its state cannot be gathered | device.parallel=ddp
device=fsdp trainer.find_batch_size=auto => trainer.find_batch_size: each process holds a part of the model
device=ddp device.ddp.static_graph=true trainer.find_batch_size=auto => trainer.find_batch_size: the batch may be split
ensemble=voting checkpoint=none => checkpoint.enabled: an ensemble is made of the checkpoints
ensemble=voting ensemble.member.index=3 => ensemble.member.index: the method of an ensemble
ensemble=bagging ensemble.resample=folds ensemble.size=5 => size: the folds are the members
ensemble=bagging ensemble.folds=3 => ensemble.folds: rows are drawn with replacement
ensemble.member.weights_of=../../mine => ensemble.member.weights_of: the name of a folder leads nowhere
ensemble.member.adds_to=[/tmp/mine] => ensemble.member.adds_to: the name of a folder leads nowhere
ensemble.member.features=[[a],['..']] => ensemble.member.features: the name of a folder does not begin
ensemble=bagging data.split.by=ordered => ensemble.resample: a random draw
ensemble=snapshot trainer.epochs=7 => trainer.epochs: the cycles do not divide
ensemble=snapshot trainer.epochs=null trainer.steps=50 => trainer.steps: the cycles do not divide
ensemble=fast_geometric ensemble.low=0.6 => ensemble.low: a cycle needs a smaller and a larger rate
ensemble=voting ensemble.engine=processes device=ddp => engine: each member
scheduler={_target_: lightkit.optim.Constant} +scheduler.warmup_steps=3 +scheduler.warmup_epochs=1
| => the warm-up is given twice
sweep.engine=slurm sweep.slurm.time=1 => sweep.slurm.save_before: a job would be told to save before
sweep.engine=slurm sweep.slurm.save_before=3600 => less than the 3600 seconds of sweep.slurm.time=60
sweep.engine=slurm sweep.slurm.time=1:00 sweep.slurm.save_before=60 => sweep.slurm.save_before
sweep.time_limit=soon => not a length of time | seconds above 0, or a text such as 90s, 30m, 2h, 1d, 1h30m or 1:30:00,
sweep.stall_limit=0 => sweep.stall_limit: not a length of time
sweep.budget=-1h => sweep.budget: not a length of time
"""
GOOD = r"""
trainer.epochs=null trainer.steps=10 optim.lr=1 model.hidden=[] data.augment=[] data.pin_memory=null loss.weight=null
optim.lr=1e-3 optim.rules=[{match: [a.*, b], lr_scale: 2}] seed=${extra.s} extra.s=3 name='with_space'
model._target_=toy.Wrapped model.depth=2 trainer.task={_target_: toy.Task.make, weight: 1}
model._target_=toy.anything ~model.act model.whatever=1 trainer.task={_target_: toy.Task, _args_: [1.0]}
model.body={_target_: toy.Net, hidden: [1], _partial_: true} metrics.monitor=val/loss metrics.mode=min
metrics.monitor=val/accuracy/cat metrics.val.accuracy.average=none device.name='cuda:3'
loss._target_=toy.anything loss.reduction=sum optim=adam optim.betas=[0,0.9]
finetune.freeze=[layer1.*,'re:^stem',@norm] finetune.train=[@tuned,@head]
finetune.freeze=[*] finetune.bn=train
finetune.freeze=[*] finetune.lora.match=[@head]
finetune.freeze=[*] finetune.schedule=[{epoch: 0, unfreeze: [a]}]
finetune.freeze=[*] finetune.gradual.share=1
finetune.freeze=[*] finetune.peft._target_=toy.anything
finetune.schedule=[{epoch: 19, freeze: [@tuned]}, {step: 100000, unfreeze: [a]}]
trainer.steps=9 finetune.schedule=[{epoch: 30, freeze: [a]}, {step: 8, freeze: [b]}]
finetune.schedule=[{epoch: 1, freeze: [a]}] finetune.gradual.every_epochs=2
optim.rules=[{match: [@body, a.*], lr: 0, allow_zero: true}, {match: b, lr_scale: 2, warmup_steps: 0}]
optim.rules=[{match: a, lr: 0.0, allow_zero: true, warmup_steps: 3}] finetune.slices=[0.01,0.1,1]
finetune=lora finetune.lora.ranks={layer1.*: 4, @conv: 2} finetune.lora.rank=${data.batch_size}
finetune.weights.mapping={encoder.*: body.*, fc.*: null} finetune.weights.path=conf finetune.weights.adapter=toy.py
device.gpus=auto:2 device.name=cuda:1 device.cuda_graphs=true device.compile=default trainer.watch.every=null
device.gpus=[0,2] device=cpu device.wait=true device.cudnn_benchmark=true device.precision=tf32 device.matmul=medium
device.gpus=auto:1 device.wait=true device.optimizer=fused optim=adamw trainer.clip_norm=1 trainer.clip_type='inf'
device.gpus=[MIG-3d6e2b0c-1b2c-5d1e] device.optimizer=foreach optim=rmsprop trainer.clip_norm=1 trainer.clip_type=1
device.gpus=MIG-GPU-3d6e2b0c/7/0 +optim.fused=true device.deterministic=true device.compile=default
device.parallel=dp device.dp_dim=1 device.dp_output=1 device.activation_checkpointing=['blocks.*', 're:^head$']
ensemble=bagging ensemble.resample=folds ensemble.size=null data.split.by=ordered
sweep.engine=slurm sweep.slurm.time=UNLIMITED
sweep.slurm.time=1 sweep.time_limit=90 sweep.stall_limit=30m sweep.budget=1:30:00
"""


def rows(text: str) -> Iterator[Any]:
    for line in text.strip().replace("\n|", " |").replace("| =>", "=>").splitlines():
        typed, _, said = line.partition(" => ")
        yield pytest.param(_split(typed), said.split(" | "), id=typed[:60])


def _split(typed: str) -> list[str]:
    """At blanks that a new override follows; `_` stands for a blank behind a colon."""
    parts = list[str]()
    for word in typed.split(" "):
        begins = not parts or word.startswith("~") or ("=" in word and not parts[-1].endswith((":", ",")))
        parts = [*parts, word] if begins else [*parts[:-1], f"{parts[-1]} {word}"]
    return [part.replace(":_", ": ") for part in parts]


@pytest.mark.thorough
@pytest.mark.parametrize(("typed", "said"), [*rows(BAD), *rows(FINETUNING), *rows(RELATIONS)])
def test_a_mistake_is_reported(report: Report, typed: list[str], said: list[str]) -> None:
    text = report(*typed)
    assert not [part for part in said if part not in text], text
    assert any("problems" in part for part in said) or "1 problem found" in text


@pytest.mark.thorough
@pytest.mark.parametrize(("typed", "said"), [*rows(GOOD)])
def test_what_is_right_passes(toy: object, typed: list[str], said: list[str]) -> None:
    compose(typed)


EACH = [
    "optim.lrr=0.1 trainer.epoch=3 sede=3 data.split={by:fold,fold:5} metrics.monitor=val/acuracy model.hidden=3",
    "finetune.freeze=[*] optim.rules=[{match:a,lr:1,lr_scale:1}] device.nproc=2 name=a/b trainer.clip_type=1",
    "ensemble=snapshot trainer.epochs=7 sweep.budget=-1h device.dp_output=1 finetune.lora.ranks={a:4} name=a/b",
]
"""Mistakes of several kinds each, that hide none of the others."""


@pytest.mark.parametrize("typed", EACH, ids=[1, 2, 3])
def test_a_mistake_hides_no_other_one(report: Report, typed: str) -> None:
    text = report(*typed.split())
    assert f"{len(typed.split()) - typed.startswith('ensemble')} problems found" in text
    for override in typed.split()[typed.startswith("ensemble") :]:
        assert f"command line: {override}" in text or "trainer.epochs" in override, text
