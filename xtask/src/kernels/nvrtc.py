"""Compiles one CUDA source to PTX with NVRTC, without a driver and without a toolkit.

usage: nvrtc.py LIBNVRTC SOURCE INCLUDES OUTPUT OPTION...

Every header below INCLUDES is passed in memory, under its relative path (those in lib/ also under their bare name), so that
nothing outside it can be included. Any output of NVRTC, warnings included, is an error.
"""

import ctypes
import os
import sys


def main():
    library, source, includes, output, *options = sys.argv[1:]
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(name, *arguments):
        status = getattr(nvrtc, name)(*arguments)
        if status != 0:
            raise SystemExit(f"{source}: {name}: {nvrtc.nvrtcGetErrorString(status).decode()} ({status})")

    def text(size_of, get):
        size = ctypes.c_size_t()
        call(size_of, program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        call(get, program, buffer)
        return buffer.value.decode()

    names, headers = gather(includes)
    program = ctypes.c_void_p()
    with open(source, "rb") as file:
        code = file.read()
    strings = ctypes.c_char_p * len(names)
    # The name only, not the path: it becomes part of internal symbol names, and the output must not depend on the path.
    name = os.path.basename(source).encode()
    call("nvrtcCreateProgram", ctypes.byref(program), code, name, len(names), strings(*headers), strings(*names))
    flags = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    log = text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").strip()
    if status != 0 or log:
        raise SystemExit(f"{log}\n{source}: {nvrtc.nvrtcGetErrorString(status).decode()} ({status}); a warning counts")
    with open(output, "w", encoding="ascii") as file:
        file.write(text("nvrtcGetPTXSize", "nvrtcGetPTX"))


def gather(root):
    """Return names and contents of all headers, in an order that does not depend on the file system."""
    found = {}
    for folder, _, files in os.walk(root):
        for file in files:
            if file.endswith((".cuh", ".h")):
                path = os.path.join(folder, file)
                with open(path, "rb") as header:
                    content = header.read()
                name = os.path.relpath(path, root).replace(os.sep, "/")
                found[name] = content
                if name.startswith("lib/"):
                    found.setdefault(name[len("lib/"):], content)
    names = sorted(found)
    return [name.encode() for name in names], [found[name] for name in names]


if __name__ == "__main__":
    main()
