"""A small training loop: a four-layer MLP in bf16 autocast with AdamW. One unit is one step (about
3 ms on an H200, nearly all of it on the card)."""

import worker


def body():
    import torch

    torch.manual_seed(1)
    width, batch = 4096, 4096
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(width, width), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(batch, width, device="cuda")
    y = torch.randn(batch, width, device="cuda")

    def submit():
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimiser.step()

    worker.serve(torch, "train", per_chunk=1, depth=3, submit=submit)


if __name__ == "__main__":
    worker.main(body)
