"""`python -m actorlm.bench gpu`: what a machine can run that has a GPU, torch and Triton, and nothing else of ours."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] != ["gpu"]:
        sys.exit("usage: python -m actorlm.bench gpu [OPTIONS]; for servers and offline: actorlm bench --help")
    from actorlm.bench.gpu.command import main

    sys.exit(main(sys.argv[2:]))
