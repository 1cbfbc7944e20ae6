"""Known errors, as PyTorch words them: raised here where that can be, quoted where a GPU or a crash would be needed."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, default_collate

from lightkit.doctor.traceback import explain, known_errors, lines

X, Y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


def twice() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = (weight**2).sum()
    loss.backward()
    loss.backward()


def in_place() -> None:
    value = torch.ones(2, requires_grad=True).exp()
    value += 1
    value.sum().backward()


def leaf() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight += 1


class Uninitialised(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(1, 1)


def called(**members: object) -> object:
    """Call a module that has these members."""
    return type("Net", (nn.Module,), members)()(X)


class Remembering(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.output = x * torch.ones(3, requires_grad=True)
        return self.output


def copied() -> None:
    model = Remembering()
    model(X)
    copy.deepcopy(model)


def stepped_on() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(X)], 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)
    for _ in range(3):
        optimizer.step()
        schedule.step()


def kept_of_other_parameters() -> None:
    one, two = ([nn.Parameter(X) for _ in range(count)] for count in (1, 2))
    torch.optim.SGD(one, 0.1).load_state_dict(torch.optim.SGD(two, 0.1).state_dict())


def made_for_inference() -> None:
    with torch.inference_mode():
        value = torch.ones(2)
    value += 1


RAISED: dict[str, Callable[[], object]] = {
    "shapes of a linear layer": partial(nn.Linear(5, 2), X),
    "channels of a convolution": partial(nn.Conv2d(3, 4, 3), torch.zeros(2, 1, 8, 8)),
    "picture smaller than the network needs": partial(nn.Conv2d(1, 1, 5), torch.zeros(2, 1, 3, 3)),
    "shapes that do not broadcast": lambda: X + torch.zeros(5),
    "shape of a view": lambda: X.view(5, -1),
    "view of a transposed tensor": lambda: X.T.view(-1),
    "tensors that cannot be joined": lambda: torch.cat([torch.zeros(2, 3), torch.zeros(2, 4)]),
    "outputs and targets of different numbers": lambda: F.cross_entropy(X, Y[:2]),
    "outputs and targets of different shapes": lambda: F.binary_cross_entropy_with_logits(X, X[:, :1]),
    "class number out of range": lambda: F.cross_entropy(X, Y + 5),
    "row of an embedding out of range": partial(nn.Embedding(3, 2), Y + 5),
    "labels of a wrong type": lambda: F.cross_entropy(X, Y.int()),
    "numbers of different precision": partial(nn.Linear(3, 2), X.double()),
    "probabilities outside of 0 and 1": lambda: F.binary_cross_entropy(X + 2, X),
    "batch norm of one sample": partial(nn.BatchNorm1d(3), X[:1]),
    "loss without gradient": lambda: X.sum().backward(),
    "backward twice": twice,
    "value changed in place": in_place,
    "weight changed in place": leaf,
    "loss of several numbers": lambda: (X * torch.ones(3, requires_grad=True)).backward(),
    "tensor with gradient to NumPy": torch.ones(2, requires_grad=True).numpy,
    "truth of a tensor": lambda: bool(X == 0),
    "module without super().__init__()": Uninitialised,
    "optimizer without parameters": lambda: torch.optim.SGD([], 0.1),
    "parameter in two groups": lambda: torch.optim.SGD([{"params": [p]} for p in [nn.Parameter(X)] * 2], 0.1),
    "attention that cannot be split": lambda: nn.MultiheadAttention(10, 3),
    "missing dimension": partial(nn.Conv2d(3, 4, 3), torch.zeros(8, 8)),
    "state of another batch size": lambda: nn.GRU(3, 2)(torch.zeros(2, 4, 3), torch.zeros(1, 5, 2)),
    "output that is a tuple": lambda: F.relu(nn.LSTM(3, 2)(torch.zeros(2, 4, 3))),
    "dimension that is not there": lambda: torch.zeros(3).softmax(1),
    "loss that is no tensor": lambda: X.sum().item().backward(),
    "number from a tensor of many": lambda: float(X),
    "one-hot targets": lambda: F.nll_loss(X, Y[:, None]),
    "text or objects in a table": lambda: torch.from_numpy(np.array(["a", None], dtype=object)),
    "width of a recurrent input": partial(nn.GRU(5, 2), torch.zeros(2, 1, 3)),
    "samples of different sizes": lambda: default_collate([torch.zeros(2), torch.zeros(3)]),
    "sample of a kind that makes no batch": lambda: default_collate([None, None]),
    "empty data set": lambda: DataLoader([], shuffle=True),
    "weights of another model": lambda: nn.Linear(3, 2).load_state_dict({"module.weight": X}),
    "missing package": lambda: __import__("no_such_package_anywhere"),
    "channels of a norm": partial(nn.BatchNorm1d(5), X),
    "width of an attention": lambda: nn.MultiheadAttention(4, 2)(X[:, None], X[:, None], X[:, None]),
    "mask of an attention": lambda: nn.MultiheadAttention(3, 1)(*[X[:, None]] * 3, attn_mask=torch.zeros(9, 9)),
    "dimensions of a permutation": lambda: X.permute(0, 3, 1, 2),
    "indexed more often than it has dimensions": lambda: X[0, 0, 0],
    "whole numbers where floats belong": lambda: F.cross_entropy(X, X.long()),
    "floats where whole numbers belong": partial(nn.Embedding(3, 2), X),
    "weights of the classes": lambda: F.cross_entropy(X, Y, weight=torch.ones(5)),
    "model without forward": called,
    "arguments of a call": lambda: called(forward=lambda self, x, more: x),
    "what an optimizer takes": lambda: torch.optim.SGD([nn.Linear(1, 1)], 0.1),
    "more steps than the schedule has": stepped_on,
    "copy of a computed tensor": copied,
    "tensor that the loss does not depend on": lambda: torch.autograd.grad(nn.Parameter(X).sum(), nn.Parameter(X)),
    "sizes of a matrix product": lambda: torch.bmm(torch.zeros(2, 3, 4), torch.zeros(2, 5, 6)),
    "probabilities that are none": lambda: torch.multinomial(torch.tensor([-1.0, 2.0]), 1),
    "tensor of inference mode": made_for_inference,
    "optimizer of another model": kept_of_other_parameters,
    "weights where a model belongs": lambda: nn.Linear(3, 2).state_dict().eval(),
    "rows of unequal length": lambda: default_collate([[1, 2], [1]]),
    "texts where numbers belong": lambda: torch.tensor(["cat"]),
    "array with a negative stride": lambda: torch.from_numpy(np.zeros((3, 3))[::-1]),
    "table where an array belongs": lambda: torch.from_numpy([1, 2]),
    "loader that is indexed": lambda: DataLoader([1])[0],
    "arguments of a loader": lambda: DataLoader([1], prefetch_factor=2),
    "split of a wrong length": lambda: torch.utils.data.random_split([1, 2, 3], [5, 1]),
    "name that this version does not have": lambda: torch.no_such_name,
    "grey pictures, statistics of colours": lambda: torch.zeros(1, 4, 4).sub_(torch.zeros(3, 1, 1)),
    "no process group": lambda: torch.distributed.all_reduce(X),
}
QUOTED = """
out of memory ; torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.
two copies of OpenMP ; OMP: Error #15: Initializing libiomp5md.dll, but found it already initialized.
assertion on the GPU ; RuntimeError: CUDA error: device-side assert triggered
illegal access on the GPU ; RuntimeError: CUDA error: an illegal memory access was encountered
tensors on different devices ; RuntimeError: Expected all tensors to be on the same device
PyTorch without CUDA ; AssertionError: Torch not compiled with CUDA enabled
no driver ; RuntimeError: Found no NVIDIA driver on your system.
driver too old ; RuntimeError: The NVIDIA driver on your system is too old (found version 11040).
GPU that this build does not know ; RuntimeError: CUDA error: no kernel image is available for execution on the device
no such GPU ; RuntimeError: CUDA error: invalid device ordinal
cuDNN ; RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED
cuBLAS ; RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`
CUDA in a forked process ; RuntimeError: Cannot re-initialize CUDA in forked subprocess.
reading worker killed ; RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error.
process ended by the system ; Epoch 3:  45%|##  | 450/1000 [01:20<01:30,  5.60it/s]Killed
crash of native code ; Segmentation fault (core dumped)
paging file of Windows ; OSError: [WinError 1455] The paging file is too small for this operation to complete.
picture that cannot be read ; PIL.UnidentifiedImageError: cannot identify image file '/data/._001.jpg'
certificate or download ; urllib.error.URLError: <urlopen error
label that no index finds ; File "/venv/pandas/core/indexes/base.py", line 3805, in get_loc\\nKeyError: 17
shared memory full ; RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode
too many open files ; OSError: [Errno 24] Too many open files
processes without main guard ; RuntimeError: An attempt has been made to start a new process before the\\n        \
current process has finished its bootstrapping phase.
what cannot be handed to a process ; AttributeError: Can't pickle local object 'main.<locals>.<lambda>'
checkpoint from a GPU ; RuntimeError: Attempting to deserialize object on a CUDA device but
file with more than weights ; _pickle.UnpicklingError: Weights only load failed.
damaged file ; RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory
wrapped model ; AttributeError: 'DistributedDataParallel' object has no attribute 'fc'
parameters without gradient in DDP ; RuntimeError: Expected to have finished reduction in the prior iteration
processes that lost each other ; [rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)
port in use ; The server socket has failed to listen on any local network address. EADDRINUSE
half precision where there is none ; RuntimeError: "addmm_impl_cpu_" not implemented for 'Half'
gradients in half precision ; ValueError: Attempting to unscale FP16 gradients.
operation without deterministic form ; RuntimeError: cumsum_cuda_kernel does not have a deterministic implementation
float64 on Apple's GPU ; TypeError: Cannot convert a MPS Tensor to float64 dtype
torch.compile ; torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:
packages that do not fit PyTorch ; RuntimeError: operator torchvision::nms does not exist
NumPy of another generation ; A module that was compiled using NumPy 1.x cannot be run in\\nNumPy 2.0.0
disk full ; OSError: [Errno 28] No space left on device
NaN in the backward pass ; RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.
DataParallel of a model elsewhere ; RuntimeError: module must have its parameters and buffers on device cuda:0 \
(device_ids[0]) but found one of them on device: cpu
model saved whole ; AttributeError: Can't get attribute 'FooNet2' on <module '__main__' from 'predict.py'>
class that the opened process lacks ; AttributeError: Can't get attribute 'Cats' on <module '__main__' (built-in)>
process at the other end of a pipe ; BrokenPipeError: [Errno 32] Broken pipe
transform of another kind of picture ; TypeError: pic should be PIL Image or ndarray. Got <class 'torch.Tensor'>
crop larger than the picture ; ValueError: Required crop size (224, 224) is larger than input image size (32, 32)
folder without classes ; FileNotFoundError: Found no valid file for the classes .ipynb_checkpoints.
data set that was not downloaded ; RuntimeError: Dataset not found or corrupted. You can use download=True
name on the Hugging Face Hub ; OSError: bert-base is not a local folder and is not a valid model identifier
tokenizer without padding ; ValueError: Asking to pad but the tokenizer does not have a padding token.
text of a wrong kind for a tokenizer ; ValueError: text input must be of type `str`
text longer than the model takes ; RuntimeError: The expanded size of the tensor (650) must match the existing size \
(514)
model that got no labels ; ValueError: The model did not return a loss from the inputs
file named like a package ; AttributeError: partially initialized module 'torch' has no attribute
step without a checked gradient ; AssertionError: No inf checks were recorded for this optimizer.
GPU tensor to NumPy ; TypeError: can't convert cuda:0 device type tensor to numpy.
tensors on different devices ; RuntimeError: expected device cuda:0 but got device cpu
tensors on different devices ; RuntimeError: Expected object of device type cuda but got
tensors on different devices ; RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda
tensors on different devices ; RuntimeError: Input and parameter tensors are not at the same device, found input \
tensor at
tensors on different devices ; RuntimeError: indices should be either on cpu or on the same device as the indexed \
tensor
tensors on different devices ; RuntimeError: 'lengths' argument should be a 1D CPU
tensors on different devices ; RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'
numbers of different precision ; RuntimeError: Input type (torch.cuda.FloatTensor) and weight type \
(torch.cuda.HalfTensor) should be the same
transform of another kind of picture ; RuntimeError: img should be PIL Image. Got <class 'numpy.ndarray'>
transform of another kind of picture ; RuntimeError: img should be Tensor Image. Got <class 'PIL.Image.Image'>
transform of another kind of picture ; RuntimeError: pic should be Tensor or ndarray. Got <class 'list'>.
transform of another kind of picture ; RuntimeError: Unexpected type <class 'numpy.ndarray'>
DataParallel of a model elsewhere ; RuntimeError: all tensors must be on devices[0]
file with more than weights ; _pickle.UnpicklingError: Weights only load failed
processes that lost each other ; ConnectionResetError: [Errno 104] Connection reset by peer
process at the other end of a pipe ; EOFError: Ran out of input
output that is a tuple ; RuntimeError: cross_entropy_loss(): argument 'input' (position 1) must be Tensor, not \
InceptionOutputs
weights where a model belongs ; RuntimeError: 'dict' object has no attribute 'eval'
indexed more often than it has dimensions ; RuntimeError: invalid index of a 0-dim tensor
whole numbers where floats belong ; RuntimeError: result type Float can't be cast to the desired output type Long
sizes of a matrix product ; RuntimeError: size mismatch, m1
"""
"""Names of errors, and texts in which they are known."""
TEXTS = [tuple(line.replace("\\n", "\n").split(" ; ", 1)) for line in QUOTED.strip().splitlines()]


@pytest.mark.parametrize("name", RAISED)
def test_an_error_of_this_pytorch_is_known(name: str) -> None:
    try:
        RAISED[name]()
    except Exception:
        found = explain(traceback.format_exc())
    assert found.known, found.message
    assert found.known[0].name == name
    assert "{" not in (found.known[0].cause + found.known[0].fix).replace("{k.removeprefix('module.'): v ...}", "")


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_an_error_that_is_quoted_is_known(name: str, text: str) -> None:
    assert explain(text + "\n").known[0].name == name


def test_every_known_error_is_tried() -> None:
    assert {known.name for known in known_errors()} == {*RAISED, *dict(TEXTS)}


def test_numbers_of_the_error_are_in_its_explanation() -> None:
    text = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x400 and 784x10)"
    (known,) = explain(text).known

    assert known.says == text
    assert known.cause == "a linear layer takes 784 numbers a sample and got 400"
    assert "nn.Linear(400, 10)" in known.fix


TEXT = """Traceback (most recent call last):
  File "/home/me/train.py", line 42, in <module>
    main()
  File "/home/me/net.py", line 12, in forward
    return self.fc(x)
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 114, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: size mismatch
"""


def test_the_line_of_ones_own_is_named() -> None:
    assert explain(TEXT).place == "/home/me/net.py:12, in forward: return self.fc(x)"


NOTEBOOK = """\x1b[0;31m---------------------------------------------------------------\x1b[0m
\x1b[0;31mRuntimeError\x1b[0m                     Traceback (most recent call last)
Cell \x1b[0;32mIn[7], line 5\x1b[0m
\x1b[1;32m      3\x1b[0m y = y.to(device)
\x1b[0;32m----> 5\x1b[0m out \x1b[38;5;241m=\x1b[39m \x1b[43mmodel\x1b[49m(x)

File \x1b[0;32m~/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1518\x1b[0m, in Module.call(self)
\x1b[1;32m   1518\x1b[0m
\x1b[0;32m-> 1519\x1b[0m return forward_call()

\x1b[0;31mRuntimeError\x1b[0m: Expected all tensors to be on the same device, but found two
"""
OLD_NOTEBOOK = """<ipython-input-12-5d3b1c2f> in <module>
      8     for x, y in loader:
---> 10         out = model(x)
     11         loss = criterion(out, y)

RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x784 and 512x10)
"""
DRAWN = """╭──────────────── Traceback (most recent call last) ────────────────╮
│ /content/train.py:42 in <module>                                  │
│                                                                   │
│   39 for epoch in range(10):                                      │
│ ❱ 42 │   loss = criterion(model(x), y)                            │
│                                                                   │
│ /usr/lib/python3.10/dist-packages/torch/nn/modules/module.py:1501 │
╰───────────────────────────────────────────────────────────────────╯
RuntimeError: Input type (torch.cuda.FloatTensor) and weight type
(torch.FloatTensor) should be the same
"""
OF_A_RANK = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 55, in train
[rank1]:     loss.backward()
[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        (NOTEBOOK, "tensors on different devices", "Cell In[7]:5: out = model(x)"),
        (OLD_NOTEBOOK, "shapes of a linear layer", "<ipython-input-12-5d3b1c2f>:10, in <module>: out = model(x)"),
        (DRAWN, "tensors on different devices", "/content/train.py:42, in <module>: loss = criterion(model(x), y)"),
        (OF_A_RANK, "parameters without gradient in DDP", "/home/u/train.py:55, in train: loss.backward()"),
    ],
    ids=["notebook", "old notebook", "rich", "rank"],
)
def test_a_traceback_is_read_however_it_was_shown(text: str, name: str, place: str) -> None:
    found = explain(text)

    assert ([each.name for each in found.known], found.place) == ([name], place)
    assert "\x1b" not in found.known[0].says
    assert found.message in found.known[0].says


def test_lines_of_windows_are_lines() -> None:
    assert explain(TEXT.replace("\n", "\r\n")).place == explain(TEXT).place


def test_what_came_first_is_the_cause() -> None:
    quoted = dict(reversed(TEXTS))
    text = f"{quoted['out of memory']}\n...\n{quoted['processes that lost each other']}\n"
    assert [each.name for each in explain(text).known] == ["out of memory", "processes that lost each other"]


def test_what_is_not_known_is_said_so() -> None:
    unknown, empty = explain("Traceback\nValueError: nobody knows\n"), explain("all is well")

    assert (unknown.message, unknown.known) == ("ValueError: nobody knows", ())
    assert "not an error that is known here" in "\n".join(lines(unknown, 80))
    assert [*lines(empty, 80)] == ["no traceback and no known error in this text"]


def test_codes_of_lightkit_lead_to_its_own_explanations() -> None:
    found = explain("error: optim.lrr: unknown key\nmore: lightkit explain LK101 LK102\n")

    assert found.codes == ("LK101", "LK102")
    assert "lightkit explain LK101 LK102 says more" in "\n".join(lines(found, 80))


def test_numpy_words_are_not_taken_for_errors() -> None:
    assert explain(str(np.zeros(3))).known == ()


LACKS = "AttributeError: Can't get attribute 'FooNet2' on <module '__main__' from '/home/me/predict.py'>\n"
OPENED = '  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1525, in load\n'
BEGUN = '  File "C:\\Python311\\Lib\\multiprocessing\\spawn.py", line 122, in spawn_main\n'


@pytest.mark.parametrize(
    ("text", "name"),
    [(OPENED + LACKS, "model saved whole"), (BEGUN + LACKS, "class that the opened process lacks")],
)
def test_a_class_that_is_not_there_is_told_by_who_looked_for_it(text: str, name: str) -> None:
    (known,) = explain("Traceback (most recent call last):\n" + text).known
    assert known.name == name
    assert "FooNet2" in known.cause
