"""Errors that come from data sets, transforms, the processes of a loader, and the tokenizers and hubs around them."""

from __future__ import annotations

from lightkit.doctor.after.known import Known

STARTED = r"multiprocessing.{1,20}(spawn|forkserver)|spawn_main|DataLoader worker|<module '__main__' \(built-in\)>"
"""What a traceback of a process has in it that Python started anew."""

DATA: tuple[Known, ...] = (
    Known(
        "reading worker killed",
        r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\)? (is killed by signal: (?P<signal>\w[\w ]*)|exited unexpectedly)",
        "a worker process died: memory ran out (Killed), /dev/shm is full (Bus error), or native code crashed",
        "num_workers=0 shows the error itself; docker run --shm-size=8g; fewer workers",
        "data.num_workers=0 once, then fewer than before",
    ),
    Known(
        "shared memory full",
        r"(unable to (open|write to|mmap) .*shared memory|insufficient shared memory \(shm\))",
        "workers exchange batches through /dev/shm, which is small in containers",
        "docker run --shm-size=8g or --ipc=host; torch.multiprocessing.set_sharing_strategy('file_system')",
        "data.num_workers=0, or fewer and smaller batches ahead: data.prefetch_factor=1",
    ),
    Known(
        "too many open files",
        r"(Too many open files|received 0 items of ancdata)",
        "workers hand tensors over as open files, and the limit of the shell is low",
        "ulimit -n 65536; torch.multiprocessing.set_sharing_strategy('file_system')",
        "fewer data.num_workers",
    ),
    Known(
        "processes without main guard",
        r"(attempt has been made to start a new process before the\s+current process has finished|freeze_support\(\))",
        "each worker imports the script again, and starts workers there (Windows, macOS)",
        "if __name__ == '__main__': around what the script does",
        "lightkit train needs none",
    ),
    Known(
        "what cannot be handed to a process",
        r"(Can't (pickle|get) local object|Can't pickle (<function|<class|attribute)|cannot pickle "
        r"'(?P<kind>[\w.]+)' object)",
        "a worker gets the data set as a copy, which a lambda, an open file or a lock in it does not allow",
        "a function of a module in place of the lambda; open files in __getitem__, not in __init__",
        "data.num_workers=0",
    ),
    Known(
        "samples of different sizes",
        r"stack expects each tensor to be equal size",
        "samples of one batch differ in shape: pictures of different sizes, texts of different lengths",
        "Resize((h, w)) with both sides, or a collate_fn that pads (torch.nn.utils.rnn.pad_sequence)",
        "a `collate_fn` attribute of the data set",
    ),
    Known(
        "sample of a kind that makes no batch",
        r"default_collate: batch must contain .*found <class '(?P<kind>[^']*)'>",
        "__getitem__ gives {kind}, of which no batch can be made: a missing transform, or a missing return",
        "ToTensor() for pictures; return x, y on every path",
    ),
    Known(
        "empty data set",
        r"num_samples should be a positive integer value, but got num_samples=0",
        "the data set has no samples: a path that does not exist, a pattern that matches nothing, a filter",
        "print(len(dataset)) and the path",
    ),
    Known(
        "picture that cannot be read",
        r"(cannot identify image file|image file is truncated|broken data stream when reading image)",
        "a file in the folder is no picture, or was not copied to its end; macOS leaves files named ._NAME behind",
        "find . -name '._*' -delete; PIL.Image.open(path).verify() over all files names the others",
    ),
    Known(
        "paging file of Windows",
        r"WinError 1455",
        "each worker loads PyTorch's libraries, and Windows sets memory aside for all of them",
        "num_workers=0, or fewer; a larger paging file",
        "data.num_workers=0",
    ),
    Known(
        "class that the opened process lacks",
        r"Can't get attribute '(?P<name>[\w.]+)' on <module '(?P<module>[\w.]+)'",
        "a process of its own was started (Windows, macOS, notebooks) and does not find {name}: what is defined in a "
        "notebook cell, or below `if __name__ == '__main__'`, is not there",
        "put {name} into a file of its own and import it from there; or num_workers=0",
        "data.num_workers=0",
        beside=STARTED,
    ),
    Known(
        "process at the other end of a pipe",
        r"(BrokenPipeError|EOFError: Ran out of input)",
        "the other end of a pipe has ended: a process of the loader died as it started or was ended (its own error "
        "stands elsewhere in the output), or what read the output is gone, as `| head` or a closed terminal",
        "num_workers=0 shows the error itself; `if __name__ == '__main__':` around what a script does (Windows, macOS)",
        "data.num_workers=0; lightkit train -d goes on without the terminal",
    ),
    Known(
        "transform of another kind of picture",
        r"((pic|img|Input tensor|tensor) should be (a )?(PIL Image|Tensor Image|Tensor|PIL|torch tensor)[\w ]*\. ?Got "
        r"(type )?<?(class )?'?(?P<kind>[\w.]+)|Unexpected type <class '(?P<other>[\w.]+)'>|"
        r"tensor is not a torch image)",
        "a transform got {kind}{other}, not the kind it takes: they stand in the wrong order, one was applied "
        "twice, or "
        "the picture was never opened",
        "PIL pictures first (Resize, flips, crops), then ToTensor() once, then Normalize; Image.open(path), "
        "Image.fromarray(array) or ToPILImage() in front; in torchvision.transforms.v2: ToImage(), "
        "ToDtype(torch.float32, scale=True)",
        "data.augment and data.dataset.size of data=image_folder have the order right",
    ),
    Known(
        "grey pictures, statistics of colours",
        r"output with shape \[1, (?P<h>\d+), (?P<w>\d+)\] doesn't match the broadcast shape \[3, \d+, \d+\]",
        "Normalize has three means for a picture of one channel",
        "Normalize((0.5,), (0.5,)), or Image.open(path).convert('RGB')",
    ),
    Known(
        "crop larger than the picture",
        r"Required crop size \((?P<wants>[\d, ]+)\) is larger than input image size \((?P<got>[\d, ]+)\)",
        "a crop of ({wants}) is to be cut from a picture of ({got})",
        "Resize first, RandomCrop(size, pad_if_needed=True), or RandomResizedCrop(size)",
    ),
    Known(
        "folder without classes",
        r"(Couldn't find any class folder in|Found no valid file for the classes)",
        "ImageFolder wants a folder for each class, with pictures in each: FOLDER/cat/1.jpg",
        "the folder above the classes as root; delete empty folders (.ipynb_checkpoints), or allow_empty=True",
        "lightkit doctor data=image_folder data.dataset.root=FOLDER",
    ),
    Known(
        "data set that was not downloaded",
        r"Dataset not found( or corrupted)?\. You can use download=True",
        "there are no files of the data set below `root`, or its download was broken off",
        "download=True once, where there is a network; the same root as then; delete what is half there",
    ),
    Known(
        "rows of unequal length",
        r"(each element in list of batch should be of equal size|expected sequence of length \d+ at dim \d+ \(got "
        r"\d+\)|"
        r"Unable to create tensor, you should probably activate truncation)",
        "lists of different lengths are made into one tensor: texts of different lengths, most often",
        "tokenizer(texts, padding=True, truncation=True, return_tensors='pt'); or a collate_fn with pad_sequence",
        "a `collate_fn` attribute of the data set",
    ),
    Known(
        "texts where numbers belong",
        r"(too many dimensions 'str'|new\(\): invalid data type 'str'|Could not infer dtype of (?P<kind>\w+))",
        "a tensor is made of texts, None or objects",
        "give each class a number: sorted(set(labels)).index(label); fill or drop what is missing",
        "data=csv reads columns of text as classes",
    ),
    Known(
        "array with a negative stride",
        r"[Aa]t least one stride in the given numpy array is negative|some of the strides of a given numpy array "
        r"are neg",
        "the array was turned round by [::-1] or np.flip, which PyTorch cannot share",
        "torch.from_numpy(array.copy())",
    ),
    Known(
        "table where an array belongs",
        r"expected np\.ndarray \(got (?P<kind>\w+)\)",
        "torch.from_numpy got a {kind}",
        "df.to_numpy(dtype='float32'), or torch.tensor(...)",
    ),
    Known(
        "loader that is indexed",
        r"'DataLoader' object is not (subscriptable|an iterator)",
        "a DataLoader gives its batches in a loop only",
        "next(iter(loader)) for one batch, loader.dataset[i] for a sample",
    ),
    Known(
        "arguments of a loader",
        r"(sampler option is mutually exclusive with shuffle|prefetch_factor option could only be specified in "
        r"multiproc|"
        r"persistent_workers option needs num_workers > 0|DataLoader timed out after)",
        "options of the DataLoader contradict each other, or a process of it did not answer in `timeout` seconds",
        "no shuffle=True beside a sampler; prefetch_factor, persistent_workers and timeout with num_workers > 0 only",
        "data.num_workers and data.prefetch_factor are checked before a run",
    ),
    Known(
        "split of a wrong length",
        r"Sum of input lengths does not equal the length of the input dataset|Size mismatch between tensors",
        "the parts of random_split do not add up to the data set, or the tensors of a TensorDataset differ in length",
        "random_split(data, [n, len(data) - n]) or shares [0.8, 0.2]; print(len(...)) of each tensor",
        "data.split.val=0.2 cuts a split by itself",
    ),
    Known(
        "name on the Hugging Face Hub",
        r"(is not a local folder and is not a valid model identifier|Can't load (tokenizer|the model|the configuration|"
        r"feature extractor|image processor|config) (for|of) |We couldn't connect to 'https://huggingface\.co'|"
        r"RepositoryNotFoundError|GatedRepoError|LocalEntryNotFoundError|OfflineModeIsEnabled)",
        "the model is named otherwise, is private or asks for consent, or the machine has no network and it is not in "
        "the cache",
        "the name as on huggingface.co; `hf auth login` and the consent on the model's page; without a network copy "
        "~/.cache/huggingface and set HF_HUB_OFFLINE=1; a folder of that name beside the script is taken first",
        "finetune.weights.path=FOLDER",
    ),
    Known(
        "tokenizer without padding",
        r"(does not have a padding token|Cannot handle batch sizes > 1 if no padding token is defined)",
        "GPT-like models know no padding token, which batches of unequal texts need",
        "tokenizer.pad_token = tokenizer.eos_token; model.config.pad_token_id = tokenizer.pad_token_id",
    ),
    Known(
        "text of a wrong kind for a tokenizer",
        r"([Tt]ext input must be of type `?str`?|TextEncodeInput must be Union)",
        "the tokenizer got something that is no text: None, NaN of a table, a number, an array",
        "df['text'].fillna('').astype(str).tolist()",
    ),
    Known(
        "text longer than the model takes",
        r"(The expanded size of the tensor \((?P<got>\d+)\) must match the existing size \((?P<wants>51[24]|1024)\)|"
        r"[Tt]oken indices sequence length is longer than the specified maximum)",
        "a text has more tokens than the model has positions for",
        "tokenizer(..., truncation=True, max_length=512)",
    ),
    Known(
        "model that got no labels",
        r"The model did not return a loss from the inputs",
        "a Trainer of transformers found no `labels` in the batch",
        "call the column `labels`; keep it in collate_fn and remove_unused_columns=False if it is dropped",
        "lightkit computes the loss by `loss`, from the model's logits",
    ),
)
"""What is known."""
