"""llama.cpp's HTTP server from the wheel `xllamacpp`. Runs in that wheel's environment.

    python llama_server.py MODEL.gguf PORT THREADS SLOTS CONTEXT

SLOTS requests have equal parts of CONTEXT tokens: one cache that all share (`kv_unified`) took 64 of them twice the
time. The server keeps no copies of old prompts in memory (`cache_ram_mib` 0): no prompt comes twice here, and copying
them takes time.
"""

import signal
import sys

import xllamacpp


def main() -> None:
    """Serves until SIGTERM."""
    model, port, threads, slots, context = sys.argv[1], *(int(each) for each in sys.argv[2:])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_ram_mib = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])


if __name__ == "__main__":
    main()
