"""Errors that come from devices, processes, files and versions."""

from __future__ import annotations

from lightkit.doctor.after.known import Known
from lightkit.doctor.after.known_data import STARTED

_BLOCKING = "CUDA_LAUNCH_BLOCKING=1 names the line; device.name=cpu says what is wrong with it"

MACHINE: tuple[Known, ...] = (
    Known(
        "out of memory",
        r"(CUDA (error: )?out of memory|torch\.(cuda\.)?OutOfMemoryError|HIP out of memory|MPS backend out of memory|"
        r"(can't allocate|not enough) memory: you tried to allocate|CU\w+_STATUS_ALLOC_FAILED)",
        "weights, gradients, optimizer and activations of a batch do not fit; or losses are added up with their graphs",
        "a smaller batch; total += loss.item(), not loss; torch.no_grad() in evaluation; `nvidia-smi`",
        "device.batch_size=auto finds what fits; device.precision=bf16; device.activation_checkpointing; lightkit gpus",
    ),
    Known(
        "two copies of OpenMP",
        r"OMP: Error #15",
        "two packages brought an OpenMP library of their own into one process, as conda's NumPy beside pip's PyTorch",
        "install both from one place, in a fresh environment; KMP_DUPLICATE_LIB_OK=TRUE as a stopgap only",
        "lightkit env lists versions",
    ),
    Known(
        "assertion on the GPU",
        r"device-side assert triggered",
        "an index is out of range: most often a class number for the loss, or a token for an embedding",
        f"print(y.min(), y.max()) against the size of the output. {_BLOCKING}",
        "device.name=cpu once: there the same error says which number it is",
    ),
    Known(
        "illegal access on the GPU",
        r"(an illegal memory access was encountered|unspecified launch failure|misaligned address)",
        "a kernel read where nothing is: a custom or compiled kernel, an index out of range, or a faulty GPU",
        f"without torch.compile and custom kernels first. {_BLOCKING}",
        "device.compile=none",
    ),
    Known(
        "tensors on different devices",
        r"(Expected all tensors to be on the same device|"
        r"Input type \((torch\.cuda\.\w+\) and weight type \(torch\.\w+\)|torch\.\w+\) and weight type \(torch\.cuda)|"
        r"tensors? to be on the same device, but found|[Ee]xpected (object of )?device( type)? \w+(:\d+)? but got|"
        r"not at the same device, found input tensor at|on the same device as the indexed tensor|"
        r"Expected a '\w+' device type for generator|[Pp]laceholder storage has not been allocated on MPS|"
        r"lengths'? argument should be a 1D CPU)",
        "the model or a tensor made in it is on the CPU, the other one on the GPU",
        "model.to(device), x.to(device); tensors of a model in register_buffer, new ones with device=x.device",
        "lightkit moves model, loss and batches; look for tensors that forward or a task makes itself",
    ),
    Known(
        "PyTorch without CUDA",
        r"Torch not compiled with CUDA enabled",
        "the PyTorch that is installed is the one for CPUs",
        "the line for your CUDA from https://pytorch.org/get-started, after pip uninstall torch",
        "device.name=auto takes a GPU only where there is one",
    ),
    Known(
        "no driver",
        r"Found no NVIDIA driver on your system",
        "the driver is not installed, or the container was started without the GPUs",
        "nvidia-smi on the host; docker run --gpus all",
        "lightkit env says what PyTorch sees",
    ),
    Known(
        "driver too old",
        r"(NVIDIA driver on your system is too old|driver version is insufficient for CUDA runtime version|"
        r"forward compatibility was attempted on non supported HW)",
        "this PyTorch was built for a newer CUDA than the driver knows",
        "a newer driver, or a PyTorch for an older CUDA: https://pytorch.org/get-started/previous-versions",
        "lightkit env shows both versions",
    ),
    Known(
        "GPU that this build does not know",
        r"(no kernel image is available for execution on the device|is not compatible with the current PyTorch "
        r"installation)",
        "this PyTorch has no kernels for the generation of the GPU: it is newer or much older than the build",
        "a newer PyTorch (or an older one for an old GPU); torch.cuda.get_arch_list() says what it is built for",
    ),
    Known(
        "no such GPU",
        r"invalid device ordinal",
        "a GPU is named that is not there, or hidden by CUDA_VISIBLE_DEVICES, which renumbers them from 0",
        "torch.cuda.device_count(); cuda:0 is the first visible one",
        "lightkit gpus; device.gpus=[0]",
    ),
    Known(
        "cuDNN",
        r"(?P<status>CUDNN_STATUS_\w+)",
        "{status}: little memory left, another cuDNN on LD_LIBRARY_PATH, or an input it does not take",
        "a smaller batch; unset LD_LIBRARY_PATH; torch.backends.cudnn.enabled = False as a test",
        "a smaller data.batch_size; device.cudnn_benchmark=false",
    ),
    Known(
        "cuBLAS",
        r"(?P<status>CUBLAS_STATUS_\w+)",
        "{status}: little memory left, or an index error before it that shows up here",
        f"a smaller batch. {_BLOCKING}",
        "a smaller data.batch_size",
    ),
    Known(
        "CUDA in a forked process",
        r"Cannot re-initialize CUDA in forked subprocess",
        "a worker or child process uses the GPU after its parent did",
        "leave tensors on the CPU in data sets and collate_fn; or multiprocessing.set_start_method('spawn')",
        "data sets give CPU tensors; lightkit moves the batch",
    ),
    Known(
        "process ended by the system",
        r"((^|\] ?)Killed$|oom-kill|Out of memory: Killed process|\(exit ?code: -9\)|signal 9\b|SIGKILL)",
        "the memory of the machine ran out, and Linux ended the largest process; or a scheduler did, at a limit",
        "dmesg | grep -i oom; fewer workers, a smaller batch, no growing lists; more memory from the scheduler",
        "fewer data.num_workers",
    ),
    Known(
        "crash of native code",
        r"(Segmentation fault|SIGSEGV|\(exit ?code: -11\))",
        "compiled code touched memory that is not its own: packages of different builds, or a faulty library",
        "python -X faulthandler script.py names the line; a fresh environment with torch alone; num_workers=0",
        "data.num_workers=0; device.compile=none; lightkit env lists versions",
    ),
    Known(
        "certificate or download",
        r"(CERTIFICATE_VERIFY_FAILED|HTTP Error (403|404|429|503)|urlopen error|Max retries exceeded with url)",
        "weights or data were to be downloaded, and the server, a proxy or its certificate says no",
        "download the file by hand to where it is looked for (~/.cache/torch/hub/checkpoints); pip install -U certifi",
    ),
    Known(
        "weights of another model",
        r"(size mismatch for (?P<name>[\w.]+)|Missing key\(s\) in state_dict|Unexpected key\(s\) in state_dict)",
        "the file holds weights of another architecture, another number of classes, or of a wrapper (`module.`, "
        "`_orig_mod.` in front of each name)",
        "strip the prefix: {{k.removeprefix('module.'): v ...}}; a new head for other classes; strict=False and "
        "read what it returns",
        "finetune.weights.path=FILE says what fits, and makes a new head; lightkit ckpt diff FILE FILE",
    ),
    Known(
        "checkpoint from a GPU",
        r"Attempting to deserialize object on a CUDA device but",
        "the tensors in the file remember their GPU, and here is none",
        "map_location='cpu' for torch.load",
        "lightkit's checkpoints are read on any device",
    ),
    Known(
        "file with more than weights",
        r"Weights only load failed",
        "since PyTorch 2.6 torch.load refuses files with objects: loading them may run code",
        "save model.state_dict(); weights_only=False for a file of your own alone",
        "lightkit ckpt convert",
    ),
    Known(
        "damaged file",
        r"(PytorchStreamReader failed|invalid header or archive is corrupted|unexpected EOF, expected \d+ more bytes|"
        r"not a ZIP archive)",
        "the file was not written or copied to its end",
        "copy or download it again; compare sizes",
        "lightkit resume takes the newest whole checkpoint by itself",
    ),
    Known(
        "DataParallel of a model elsewhere",
        r"module must have its parameters and buffers on device (?P<wants>\S+) \(device_ids\[0\]\) but found one "
        r"of them "
        r"on device:? (?P<got>[\w:]+)|all tensors must be on devices\[0\]",
        "nn.DataParallel wants all of the model on its first GPU, {wants}; something of it is on {got}: it was wrapped "
        "before it was moved, or device_ids does not begin with the GPU it is on",
        "nn.DataParallel(model.to('cuda:0'), device_ids=[0, 1]); tensors of the model as parameters or register_buffer",
        "device=ddp, which is faster, moves the model by itself",
    ),
    Known(
        "model saved whole",
        r"(Can't get attribute '(?P<name>[\w.]+)' on <module '(?P<module>[\w.]+)'|"
        r"SourceChangeWarning|GLOBAL __main__\.(?P<global>\w+) was not an allowed global)",
        "the model itself was saved, not its weights: the file only says where its class `{name}{global}` stood, and "
        "there is none now: it was in another script or notebook, or was renamed",
        "import the class under the same module name before the file is opened with weights_only=False; then save "
        "model.state_dict() for good, and bring it back by {name}{global}(...) and load_state_dict",
        "finetune.weights.path=FILE of a state_dict",
        unless=STARTED,
    ),
    Known(
        "weights where a model belongs",
        r"'(collections\.)?(OrderedDict|dict)' object has no attribute '(eval|to|cuda|cpu|parameters|train|"
        r"forward|state_dict"
        r"|named_parameters|modules|children)'",
        "the file holds weights (a state_dict), not the model",
        "model = Net(...); model.load_state_dict(weights); of a checkpoint the entry that holds the weights",
        "finetune.weights.path=FILE takes either",
    ),
    Known(
        "optimizer of another model",
        r"loaded state dict (contains a parameter group that doesn't match|has a different number of parameter groups)",
        "the state of the optimizer was saved for other parameters, or other groups of them",
        "build the model and its frozen parts as they were, the optimizer after that; or load the weights alone",
        "resume.override and finetune.weights.path: the former goes on, the latter begins with weights alone",
    ),
    Known(
        "file named like a package",
        r"(partially initialized module '(?P<module>\w+)' has no attribute|"
        r"cannot import name '(?P<what>\w+)' from partially initialized module)",
        "a file of your own has the name of a package (torch.py, random.py, datasets.py) and is imported in its place; "
        "or two of your modules import each other",
        "rename the file, and delete __pycache__ beside it",
    ),
    Known(
        "name that this version does not have",
        r"(module '(?P<module>torch\w*(\.\w+)*|numpy|transformers)' has no attribute '(?P<name>\w+)'|"
        r"ImportError: cannot import name '(?P<what>\w+)' from '(?P<package>[\w.]+)')",
        "{name}{what} is not in the installed version of {module}{package}: the code was written for an older or newer "
        "one",
        "python -m pip show PACKAGE; the changes between the versions, or the version that the code names",
        "lightkit env lists versions",
        unless=r"partially\s+initialized",
    ),
    Known(
        "wrapped model",
        r"'(?P<kind>(Distributed)?DataParallel)' object has no attribute",
        "{kind} wraps the model, whose own attributes are behind `.module`",
        "model.module.attribute",
    ),
    Known(
        "parameters without gradient in DDP",
        r"Expected to have finished reduction in the prior iteration",
        "a parameter took no part in the loss, and DDP waits for its gradient",
        "use all parameters, freeze the others, or DistributedDataParallel(find_unused_parameters=True)",
        "device.ddp.find_unused=true",
    ),
    Known(
        "processes that lost each other",
        r"(NCCL (error|WARN)|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|Watchdog caught collective "
        r"operation timeout|Connection (closed|reset) by peer|Timed out waiting for clients)",
        "one process of several died or hangs, or they cannot reach each other; the first error is the cause",
        "look for the first traceback of all ranks; NCCL_DEBUG=INFO; NCCL_P2P_DISABLE=1 as a test",
        "device.ddp.timeout_seconds",
    ),
    Known(
        "port in use",
        r"(EADDRINUSE|[Aa]ddress already in use)",
        "another run, or what is left of one, listens on the same port",
        "another MASTER_PORT (torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0); end what is left over",
        "lightkit chooses a free port by itself; lightkit board --port",
    ),
    Known(
        "no process group",
        r"Default process group has not been initialized",
        "something of torch.distributed is used in a script that was not started for several processes",
        "torchrun --nproc-per-node=N script.py and init_process_group()",
        "device=ddp starts and joins them",
    ),
    Known(
        "half precision where there is none",
        r"\"(?P<operation>[\w.]+)\" not implemented for '(?P<kind>Half|BFloat16)'",
        "{operation} does not exist in {kind} on this device",
        "float32 there: x.float(), or autocast, which does so by itself",
        "device.precision=fp32",
    ),
    Known(
        "gradients in half precision",
        r"Attempting to unscale FP16 gradients",
        "a GradScaler needs weights in float32, and the model was turned into half",
        "no model.half(); autocast alone",
        "device.precision=fp16, or bf16-true for weights in half",
    ),
    Known(
        "operation without deterministic form",
        r"(does not have a deterministic implementation|CUBLAS_WORKSPACE_CONFIG)",
        "only deterministic algorithms are allowed, and this operation has none",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8; use_deterministic_algorithms(True, warn_only=True); another operation",
        "device.deterministic=false",
    ),
    Known(
        "float64 on Apple's GPU",
        r"Cannot convert a MPS Tensor to float64|MPS framework doesn't support float64",
        "Apple's GPUs have no float64",
        "torch.float32 in the data set",
        "device.name=cpu",
    ),
    Known(
        "torch.compile",
        r"(BackendCompilerFailed|torch\._dynamo\.exc\.\w+|InductorError|Cannot find a working triton|"
        r"Failed to find C compiler|InvalidCxxCompiler)",
        "the compiler cannot handle the model, or lacks a C compiler or Triton",
        "apt install build-essential (and python3-dev); model uncompiled first; TORCH_LOGS=+dynamo",
        "device.compile=none",
    ),
    Known(
        "packages that do not fit PyTorch",
        r"(operator torchvision::nms does not exist|undefined symbol: \w+|lib(cud\w+|nccl|nvrtc|cublas\w*|torch\w*)\.so"
        r"[.\d]*: cannot open shared object)",
        "torch and a compiled package beside it are of different versions, or a library of CUDA is missing",
        "install both in one command from https://pytorch.org/get-started",
        "lightkit doctor looks at versions",
    ),
    Known(
        "NumPy of another generation",
        r"(compiled using NumPy 1\.x cannot be run in|Numpy is not available|_ARRAY_API not found)",
        "a package was compiled for NumPy 1 and NumPy 2 is installed",
        "pip install 'numpy<2', or newer packages",
    ),
    Known(
        "disk full",
        r"(No space left on device|Disk quota exceeded|PytorchStreamWriter failed)",
        "there is no room for what is written",
        "df -h; delete old checkpoints",
        "lightkit ckpt prune; checkpoint.keep_last=1; hydra.run.dir=FOLDER",
    ),
    Known(
        "missing package",
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",
        "the package with `{module}` is not in this Python, or the module of your own is not on its path",
        "python -m pip install PACKAGE with the same python; for a module of your own, start where it lies",
        "lightkit finds modules of the project folder: run it there, or LIGHTKIT_PROJECT=FOLDER",
    ),
)
"""What is known."""
