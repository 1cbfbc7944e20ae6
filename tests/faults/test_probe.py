from tests.faults.harness import *
from tests.faults.test_disk import disk, ON_DISK
import subprocess, time


def sh(c):
    print(subprocess.run(c, shell=True, capture_output=True, text=True).stdout)


def test_a(ran, disk, project):
    (disk / "filler").write_bytes(b"x" * (2 << 20))
    p = ran(*ON_DISK)
    print(p.err)
    (disk / "filler").unlink()
    sh("rm -rf disk/*")
    p = ran(*ON_DISK, "logger.tensorboard.enabled=true", at(9, f"fill:{disk}"))
    print(p.code, p.err)
    sh("ls -R disk; cat disk/run/config.yaml | grep -A3 tensorb")
    sh("rm disk/filler; mount -o remount,ro disk")
    p = ran("eval", "disk/run")
    print(p.code, p.err)
