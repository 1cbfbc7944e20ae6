"""Errors that come from a model, its loss, its data and their shapes."""

from __future__ import annotations

from lightkit.doctor.after.known import Known

MODELS: tuple[Known, ...] = (
    Known(
        "shapes of a linear layer",
        r"mat1 and mat2 shapes cannot be multiplied \((?P<rows>\d+)x(?P<got>\d+) and (?P<wants>\d+)x(?P<out>\d+)\)",
        "a linear layer takes {wants} numbers a sample and got {got}",
        "nn.Linear({got}, {out}), or flatten what comes before: x.flatten(1); print(x.shape) in front of the layer",
        "model: take `in_features` or `input_shape` as an argument, which the data fill in",
    ),
    Known(
        "channels of a convolution",
        r"[Gg]iven groups=\d+, weight of size \[(?P<weight>[^\]]*)\], expected input\[(?P<shape>[^\]]*)\] to have "
        r"(?P<wants>\d+) channels, but got (?P<got>\d+)",
        "a convolution takes {wants} channels and got {got}: grey pictures, or channels last",
        "nn.Conv2d({got}, ...), x.permute(0, 3, 1, 2) for channels that come last, or x.repeat(1, 3, 1, 1)",
        "model: take `in_channels` as an argument, which the data fill in",
    ),
    Known(
        "picture smaller than the network needs",
        r"(Output size is too small|Kernel size can't be greater than actual input size)",
        "the pictures are smaller than what convolutions and poolings take away from them",
        "larger pictures, padding, fewer pooling layers, or nn.AdaptiveAvgPool2d(1) before the head",
        "data.dataset.size, model.depth",
    ),
    Known(
        "missing dimension",
        r"Expected (?P<wants>\dD( \(unbatched\))?( or \dD( \(batched\))?)?) input (to \w+, but got|\(got)",
        "a layer takes {wants} input: one dimension too few or too many arrives, such as no batch or no channels",
        "x.unsqueeze(0) for one sample, x.unsqueeze(1) for grey pictures, x.flatten(1) in front of a linear layer",
        "model: take `input_shape` as an argument, which the data fill in",
    ),
    Known(
        "state of another batch size",
        r"Expected hidden(\[\d\])? size \((?P<wants>[^)]*)\), got \[(?P<got>[^\]]*)\]",
        "the state of a recurrent network was made for another number of samples: the last batch is smaller",
        "make it from the batch: torch.zeros(layers, len(x), hidden, device=x.device), or DataLoader(drop_last=True)",
        "data.drop_last=true",
    ),
    Known(
        "output that is a tuple",
        r"('tuple' object has no attribute '(dim|size|shape|log_softmax|view|softmax|to|flatten)'|must be Tensor, not "
        r"(tuple|\w+Outputs?)\b)",
        "a layer or model gives several things, as nn.LSTM, nn.MultiheadAttention and models of transformers do",
        "out, state = lstm(x); out.logits for a model of transformers",
    ),
    Known(
        "dimension that is not there",
        r"Dimension out of range \(expected to be in range of \[-?\d+, -?\d+\], but got -?\d+\)",
        "a tensor has fewer dimensions than the code takes it for: often a sample without a batch",
        "print(x.shape) in front of the line; x.unsqueeze(0) for a batch of one; no .squeeze() without a dimension",
    ),
    Known(
        "shapes that do not broadcast",
        r"The size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\) at non-singleton",
        "two tensors are combined that have {a} and {b} entries in one dimension",
        "print both shapes in front of the line; unsqueeze, transpose or flatten one of them",
    ),
    Known(
        "shape of a view",
        r"shape '(?P<shape>[^']*)' is invalid for input of size (?P<size>\d+)",
        "{size} numbers cannot be arranged as {shape}: often a batch size is written down that the last batch has not",
        "x.view(len(x), -1) or x.flatten(1), which take the number of samples from the tensor",
    ),
    Known(
        "view of a transposed tensor",
        r"view size is not compatible with input tensor's size and stride",
        "the tensor does not lie in one piece in memory, as after transpose or permute",
        "x.reshape(...) in place of x.view(...), or x.contiguous().view(...)",
    ),
    Known(
        "tensors that cannot be joined",
        r"Sizes of tensors must match except in dimension",
        "tensors are joined by torch.cat that differ in another dimension, as with skip connections of odd sizes",
        "pad or crop to one size, or join along another dim",
    ),
    Known(
        "outputs and targets of different numbers",
        r"Expected input batch_size \((?P<got>\d+)\) to match target batch_size \((?P<wants>\d+)\)",
        "the loss got {got} outputs for {wants} targets: samples and another dimension were merged on the way",
        "keep samples in dimension 0: x.flatten(1), not x.view(-1, n); for texts flatten outputs and targets alike",
        "loss=token_cross_entropy for texts",
    ),
    Known(
        "outputs and targets of different shapes",
        r"(Target size \(torch\.Size\(.*?\)\) must be the same as input size|Using a target size .* that is different "
        r"to the input size|Expected target size)",
        "outputs and targets of the loss differ in shape, such as (N, 1) and (N,); with MSELoss they are spread over "
        "each other and nonsense is learnt",
        "output.squeeze(1), or target.unsqueeze(1); classes come second in cross entropy: (N, C, ...) for (N, ...)",
        "lightkit's task drops the last dimension of (N, 1) by itself",
    ),
    Known(
        "class number out of range",
        r"(Target -?\d+ is out of bounds|Assertion `t >= 0 && t < n_classes`|Assertion `cur_target >= 0)",
        "a label is not one of 0 to C - 1, where C is the size of the output: labels from 1 on, -1 for missing ones, "
        "or an output layer that is too small",
        "print(y.min(), y.max()); subtract 1, or ignore_index=-1 in the loss, or a larger last layer",
        "model.num_classes is filled in from the data; leave it out",
    ),
    Known(
        "row of an embedding out of range",
        r"(index out of range in self|Assertion `srcIndex < srcSelectDimSize` failed)",
        "a token is not below the number of rows of an nn.Embedding: the vocabulary is larger, or a position beyond "
        "the longest text",
        "print(x.max()); nn.Embedding(x.max() + 1, dim), or cut texts to the length that positions are made for",
        "model: take `vocab_size` and `context_length` as arguments, which the data fill in",
    ),
    Known(
        "labels of a wrong type",
        r"(expected scalar type Long but found (?P<a>\w+)|\"nll_loss\w*\" not implemented for '(?P<b>\w+)'|"
        r"expected target (of type long|dtype to be Long))",
        "class numbers have to be int64, and floats or int32 came",
        "y = y.long() in the data set",
    ),
    Known(
        "one-hot targets",
        r"(0D or 1D target tensor expected, multi-target not supported|[Mm]ulti-target not supported)",
        "targets of shape (N, 1) or one-hot vectors came where the loss takes one class number for each sample",
        "y.squeeze(1) for (N, 1); y.argmax(1) for one-hot vectors",
        "a class as a plain int in the data set",
    ),
    Known(
        "text or objects in a table",
        r"can't convert np\.ndarray of type numpy\.object_",
        "a column holds texts, None or mixed types, so NumPy keeps objects, of which no tensor can be made",
        "df.dtypes shows which; encode texts (astype('category').cat.codes), fill gaps, then .astype('float32')",
        "data=csv reads columns of text as classes",
    ),
    Known(
        "label that no index finds",
        r"(pandas[\s\S]*\nKeyError: \d+|KeyError: \d+[\s\S]*pandas)",
        "a pandas table is indexed by row numbers, and after a filter or split its index has gaps",
        "df.iloc[i] in __getitem__, or df.reset_index(drop=True) after the split",
        "data=csv",
    ),
    Known(
        "numbers of different precision",
        r"(expected scalar type Float but found Double|mat1 and mat2 must have the same dtype|"
        r"expected m1 and m2 to have the same dtype|Found dtype Double but expected Float|"
        r"Input type \((double|torch\.DoubleTensor|c10::\w+)\) and bias type|"
        r"weight type \(torch(\.cuda)?\.(Half|BFloat16|Double)Tensor\) should be the same)",
        "NumPy computes in float64, PyTorch's weights are float32",
        "torch.as_tensor(x, dtype=torch.float32) in the data set; x.float()",
        "device.precision says what the network computes in",
    ),
    Known(
        "probabilities outside of 0 and 1",
        r"all elements of (input|target) should be between 0 and 1",
        "BCELoss takes probabilities and got logits, or NaN",
        "nn.BCEWithLogitsLoss on logits, without a sigmoid in the model",
        "loss=bce_with_logits",
    ),
    Known(
        "batch norm of one sample",
        r"Expected more than 1 value per channel when training",
        "batch norm cannot be trained with a batch of one sample, as the last one of an epoch may be",
        "DataLoader(drop_last=True), or a norm that needs no batch: GroupNorm, LayerNorm",
        "data.drop_last=true, or another data.batch_size",
    ),
    Known(
        "loss without gradient",
        r"element 0 of tensors does not require grad",
        "the loss depends on no weight that trains",
        "no .detach(), .item(), .data, argmax, torch.no_grad() or NumPy between weights and loss; unfreeze something",
        "lightkit plan shows what trains",
    ),
    Known(
        "backward twice",
        r"Trying to backward through the graph a second time",
        "a tensor of an earlier step takes part in this one, as the hidden state of a recurrent network",
        "state = state.detach() between steps; add losses up before one backward",
    ),
    Known(
        "value changed in place",
        r"modified by an inplace operation",
        "a value was changed that the backward pass still needs",
        "x = x + y in place of x += y, and no inplace=True behind it; torch.autograd.set_detect_anomaly(True) names it",
    ),
    Known(
        "weight changed in place",
        r"a leaf Variable that requires grad is being used in an in-place operation",
        "a parameter is changed outside of the optimizer while gradients are recorded",
        "with torch.no_grad(): weight.copy_(...), or torch.nn.init",
    ),
    Known(
        "loss that is no tensor",
        r"'(float|int|numpy\.float\d+)' object has no attribute 'backward'",
        "the loss was turned into a number before its gradients were computed",
        "loss.backward() first, loss.item() for the log after it",
        "lightkit logs the loss; a task of your own returns the tensor",
    ),
    Known(
        "loss of several numbers",
        r"grad can be implicitly created only for scalar outputs",
        "the loss is a tensor, not one number",
        "loss.mean(), or reduction='mean'; behind nn.DataParallel also the mean over the GPUs",
    ),
    Known(
        "NaN in the backward pass",
        r"Function '(?P<function>\w+)' returned nan values in its",
        "the gradient of {function} is NaN: a square root, norm, log or division at 0",
        "add a small number inside: (x + 1e-8).sqrt(), x.clamp_min(1e-8).log()",
        "trainer.nonfinite.action=skip goes on without such steps",
    ),
    Known(
        "tensor with gradient to NumPy",
        r"Can't call numpy\(\) on Tensor that requires grad",
        "NumPy knows no gradients",
        "x.detach().cpu().numpy()",
    ),
    Known(
        "GPU tensor to NumPy",
        r"can't convert (cuda|mps)(:\d+)? device type tensor to numpy",
        "NumPy works in the memory of the machine",
        "x.detach().cpu().numpy()",
    ),
    Known(
        "number from a tensor of many",
        r"(only one element tensors can be converted to Python scalars|\d+ elements cannot be converted to Scalar)",
        "float(), int() or .item() got a tensor of several numbers, or torch.tensor() a list of tensors",
        "x.mean().item(), x.tolist(); torch.stack(list_of_tensors)",
    ),
    Known(
        "truth of a tensor",
        r"Boolean value of Tensor with more than one value is ambiguous",
        "`if x == y` of tensors has many answers; also where a loss class was called like a function: MSELoss(x, y)",
        "(x == y).all(), torch.equal(x, y); nn.MSELoss()(x, y)",
    ),
    Known(
        "module without super().__init__()",
        r"cannot assign (module|parameters?) before Module\.__init__\(\) call",
        "the __init__ of the model does not call that of nn.Module first",
        "super().__init__() as the first line",
    ),
    Known(
        "optimizer without parameters",
        r"optimizer got an empty parameter list",
        "the model has no parameters: layers stand in a plain list or dict, or nothing was built yet",
        "nn.ModuleList([...]) in place of [...], nn.ModuleDict, or a layer in an attribute of its own",
    ),
    Known(
        "parameter in two groups",
        r"some parameters appear in more than one parameter group",
        "the groups handed to the optimizer overlap",
        "give each parameter to one group: what is left over by identity, not by type",
        "optim.rules gives each parameter to the first rule that matches",
    ),
    Known(
        "attention that cannot be split",
        r"embed_dim must be divisible by num_heads",
        "the width of the attention is no multiple of its heads",
        "a width that is: 128 with 4 or 8 heads",
        "model.dim, model.heads",
    ),
    Known(
        "width of a recurrent input",
        r"input\.size\(-1\) must be equal to input_size\. Expected (?P<wants>\d+), got (?P<got>\d+)",
        "a recurrent layer takes {wants} numbers a step and got {got}",
        "input_size={got}; with batch_first=True inputs are (batch, time, features)",
    ),
    Known(
        "channels of a norm",
        r"running_mean should contain (?P<got>\d+) elements not (?P<wants>\d+)|Given "
        r"normalized_shape=\[(?P<shape>[\d, ]+)\], "
        r"expected input with shape \[[^\]]*\], but got input of size\s*\[(?P<size>[\d, ]+)\]",
        "a norm was made for another width ({wants}{shape}) than arrives ({got}{size})",
        "nn.BatchNorm2d(channels of the layer before it); nn.LayerNorm(x.shape[-1])",
    ),
    Known(
        "width of an attention",
        r"was expecting embedding dimension of (?P<wants>\d+), but got (?P<got>\d+)",
        "an attention layer takes {wants} numbers a position and got {got}",
        "embed_dim={got}, or a linear layer in front of it",
    ),
    Known(
        "mask of an attention",
        r"The shape of the \dD attn_mask is .*?, but should be \((?P<wants>[\d, ]+)\)",
        "the mask does not have the shape ({wants}); without batch_first=True positions come first, not the batch",
        "nn.MultiheadAttention(..., batch_first=True); a mask of (positions, positions)",
    ),
    Known(
        "dimensions of a permutation",
        r"number of dim(ension)?s (in the tensor input )?(does not|don't) match( the length of the desired "
        r"ordering| in perm)",
        "permute names more or fewer dimensions than the tensor has: a picture without its channel or its batch",
        "print(x.shape) in front of the line; x.unsqueeze(0)",
    ),
    Known(
        "indexed more often than it has dimensions",
        r"(too many indices for tensor of dimension|invalid index of a 0-dim tensor)",
        "a tensor has fewer dimensions than it is indexed by; the loss has none at all",
        "loss.item() in place of loss[0] or loss.data[0]; print(x.shape) in front of the line",
    ),
    Known(
        "whole numbers where floats belong",
        r"(could not infer output dtype\. Input dtype must be either a floating|Can only calculate the mean of "
        r"floating types|"
        r"result type \w+ can't be cast to the desired output type (Long|Int|Byte)|"
        r"Expected floating point type for target with class probabilities)",
        "floats are needed, and int64 came: targets of a loss for yes or no, pictures as bytes; or class numbers that "
        "are shaped like the outputs, which cross entropy takes for probabilities",
        "y.float() for BCE and MSE; y of (N,) without one-hot for cross entropy; x.float() / 255 for pictures",
    ),
    Known(
        "floats where whole numbers belong",
        r"Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int",
        "an embedding takes int64 numbers of rows, and floats came",
        "x.long(): no scaling and no .float() for tokens and categories",
    ),
    Known(
        "weights of the classes",
        r"weight tensor should be defined either for all (?P<wants>\d+) classes or no classes but got weight "
        r"tensor of shape: "
        r"\[(?P<got>\d+)\]",
        "the loss has weights for {got} classes, and the outputs are {wants}",
        "one weight for each class, and as many outputs as there are classes",
    ),
    Known(
        "model without forward",
        r"Module \[(?P<name>\w+)\] is missing the required \"forward\" function",
        "{name} has no method `forward`: it is spelt otherwise, or indented into __init__",
        "def forward(self, x): in the class, one level in",
    ),
    Known(
        "arguments of a call",
        r"[\w>]\(\) (missing \d+ required (positional|keyword-only) arguments?|takes (from \d+ "
        r"to )?\d+ "
        r"positional arguments? but \d+ (was|were) given|got an unexpected keyword argument)",
        "a function or layer is called with other arguments than it takes; a container such as nn.Sequential hands on "
        "one only",
        "compare the call with the line of its `def`; super().__init__() without further arguments",
        "a task of your own calls a model with several inputs: trainer.task._target_=my_module.MyTask",
    ),
    Known(
        "what an optimizer takes",
        r"(can't optimize a non-leaf Tensor|optimizer can only optimize Tensors, but one of the params is|"
        r"params argument given to the optimizer should be an iterable)",
        "the optimizer got a model, a single tensor or a result of a computation",
        "Adam(model.parameters()), [tensor] for one; a leaf: torch.zeros(3, device=device, requires_grad=True)",
    ),
    Known(
        "more steps than the schedule has",
        r"Tried to step \d+ times\. The (specified number of )?total (number of )?steps is (?P<total>\d+)",
        "scheduler.step() is called more often than the {total} steps it was made for: after a resume, or in the wrong "
        "loop",
        "total_steps=epochs * len(loader), one step() a batch; load the scheduler's state_dict on a resume",
        "lightkit's schedules know the length of the run",
    ),
    Known(
        "copy of a computed tensor",
        r"Only Tensors created explicitly by the user( \(graph leaves\))? support the deepcopy protocol",
        "a module keeps a result of a computation as an attribute, and is copied",
        "no self.x = output in forward, or .detach(); copy.deepcopy of the model before its first forward",
    ),
    Known(
        "tensor that the loss does not depend on",
        r"[Tt]ensors?( at index \d+)? appears? to not have been used in the graph",
        "a gradient is asked for with regard to something that took no part",
        "torch.autograd.grad(..., allow_unused=True), or the tensor that forward really used",
    ),
    Known(
        "sizes of a matrix product",
        r"(Expected size for first two dimensions of batch2 tensor to be: \[(?P<wants>[\d, ]+)\] but got: "
        r"\[(?P<got>[\d, ]+)\]|"
        r"size mismatch, (m1|got input))",
        "two matrices or batches of them do not fit: the last dimension of one has to be the last but one of the other",
        "print both shapes; transpose(1, 2) for attention: q @ k.transpose(-2, -1)",
    ),
    Known(
        "probabilities that are none",
        r"(probability tensor contains either `inf`, `nan` or element < 0|to satisfy the constraint .*found "
        r"invalid values)",
        "a distribution got NaN, infinite or negative numbers: training has diverged before, or logits came for "
        "probabilities",
        "torch.isfinite(x).all() in front of it; Categorical(logits=x), softplus for a scale",
        "trainer.nonfinite.action=rollback goes back to a state that was whole",
    ),
    Known(
        "step without a checked gradient",
        r"No inf checks were recorded for this optimizer",
        "a GradScaler steps an optimizer whose parameters have no gradient: nothing was scaled, or all is frozen",
        "scaler.scale(loss).backward() before scaler.step(optimizer), and the parameters that train in that optimizer",
        "device.precision=fp16 does so by itself",
    ),
    Known(
        "tensor of inference mode",
        r"(Inplace update to inference tensor outside InferenceMode|Inference tensors cannot be saved for backward)",
        "a tensor made in torch.inference_mode() takes part in training",
        "torch.no_grad() there, or x.clone() outside",
    ),
)
"""What is known, in the order in which a tutorial meets it."""
