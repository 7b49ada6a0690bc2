"""PyTorch bf16 matrix products, 4096 x 4096 x 4096. One unit is one product (about 0.2 ms)."""

import worker


def body():
    import torch

    torch.manual_seed(1)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)

    def submit():
        for _ in range(5):
            torch.matmul(a, b, out=out)

    worker.serve(torch, "matmul", per_chunk=5, depth=6, submit=submit)


if __name__ == "__main__":
    worker.main(body)
