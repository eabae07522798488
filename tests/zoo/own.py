"""Small networks of our own, of the kinds that no package has in a small size."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from tests.zoo.network import Network, floats, image, tokens


def conv(i: int, o: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


def mobilenet_v1() -> nn.Module:
    """Howard et al. 2017, a quarter as wide and less deep."""
    plan = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    blocks = [part for i, o, s in plan for part in (conv(i, i, 3, s, groups=i), conv(i, o, 1))]
    return nn.Sequential(conv(3, 8, 3, 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class UNet(nn.Module):
    """Ronneberger et al. 2015; in 2 or 3 dimensions, up by transposed convolution or by interpolation."""

    def __init__(self, dims: int = 2, interpolate: bool = False) -> None:
        super().__init__()
        layer, norm, pool, up = {
            2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.ConvTranspose2d),
            3: (nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d, nn.ConvTranspose3d),
        }[dims]
        self.interpolate = interpolate

        def double(i: int, o: int) -> nn.Sequential:
            parts = [m for a in (i, o) for m in (layer(a, o, 3, padding=1), norm(o), nn.ReLU(inplace=True))]
            return nn.Sequential(*parts)

        self.down = nn.ModuleList([double(1, 8), double(8, 16), double(16, 32)])
        self.pool = pool(2)
        self.up = nn.ModuleList([up(32, 16, 2, 2), up(16, 8, 2, 2)])
        self.side = nn.ModuleList([layer(32, 16, 1), layer(16, 8, 1)])
        self.merge = nn.ModuleList([double(32, 16), double(16, 8)])
        self.head = layer(8, 2, 1)

    def forward(self, x):
        kept = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x))
            kept.append(x)
        for i, merge in enumerate(self.merge):
            skip = kept[-2 - i]
            if self.interpolate:
                x = self.side[i](F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=True))
            else:
                x = self.up[i](x)
            x = merge(torch.cat([skip, x], 1))
        return self.head(x)


class Recurrent(nn.Module):
    """Embedding, a recurrent layer, and a label for each token or for the whole (`last`)."""

    def __init__(self, kind: type[nn.RNNBase], last: bool, **options) -> None:
        super().__init__()
        self.embed = nn.Embedding(99, 16)
        self.cell = kind(16, 24, batch_first=True, **options)
        self.norm = nn.LayerNorm(24 * (1 + options.get("bidirectional", False)))
        self.head = nn.Linear(self.norm.normalized_shape[0], 7)
        self.last = last

    def forward(self, input_ids):
        y, _ = self.cell(self.embed(input_ids))
        return self.head(self.norm(y[:, -1] if self.last else y))


class Tcn(nn.Module):
    """Bai et al. 2018: dilated causal convolutions with residuals, weight-normalized as there."""

    def __init__(self) -> None:
        super().__init__()
        weight_norm = nn.utils.parametrizations.weight_norm
        widths = [8, 16, 16, 24]
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(a, b, 3, dilation=2**i)) for i, (a, b) in enumerate(pairwise(widths))
        )
        self.side = nn.ModuleList(nn.Conv1d(a, b, 1) if a != b else nn.Identity() for a, b in pairwise(widths))
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        for i, (layer, side) in enumerate(zip(self.convs, self.side, strict=True)):
            x = F.relu(F.dropout(layer(F.pad(x, (2 * 2**i, 0))), 0.1, self.training)) + side(x)
        return self.head(x[:, :, -1])


class TextCnn(nn.Module):
    """Kim 2014."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(99, 16, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(16, 12, k) for k in (3, 4, 5))
        self.head = nn.Linear(36, 4)

    def forward(self, input_ids):
        x = self.embed(input_ids).transpose(1, 2)
        return F.log_softmax(self.head(torch.cat([F.relu(c(x)).amax(-1) for c in self.convs], 1)), -1)


class Mixer(nn.Module):
    """Tolstikhin et al. 2021, two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(5))
        self.across = nn.ModuleList(nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 64)) for _ in range(2))
        self.within = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        for i in range(2):
            x = x + self.across[i](self.norms[2 * i](x).mT).mT
            x = x + self.within[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x).mean(1))


class WaveNet(nn.Module):
    """van den Oord et al. 2016: gated dilated convolutions with skip sums."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 16, 1)
        self.gates = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=2**i) for i in range(5))
        self.outs = nn.ModuleList(nn.Conv1d(16, 32, 1) for _ in range(5))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 16, 1), nn.ReLU(), nn.Conv1d(16, 20, 1))

    def forward(self, x):
        x, skips = self.stem(x), 0
        for i, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            kept, skip = out(a.tanh() * b.sigmoid()).split(16, 1)
            x, skips = x + kept, skips + skip
        return self.head(skips)


class PointNet(nn.Module):
    """Qi et al. 2017 with the input transform: points [N, 3, P]."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.turn = nn.Linear(32, 9)
        self.body = nn.Sequential(nn.Conv1d(3, 24, 1), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 48, 1))
        self.head = nn.Sequential(nn.Linear(48, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        turn = self.turn(self.look(x).max(-1).values).view(-1, 3, 3) + torch.eye(3)
        return self.head(self.body(torch.bmm(turn, x)).max(2)[0])


class Gcn(nn.Module):
    """Kipf and Welling 2017 on dense adjacency, which is normalized inside."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, edges):
        edges = (edges > 0).to(x.dtype) + torch.eye(edges.shape[-1])
        scale = edges.sum(-1).rsqrt()
        edges = scale.unsqueeze(-1) * edges * scale.unsqueeze(-2)
        return torch.einsum("nij,njk->nik", edges, self.two(F.relu(edges @ self.one(x)))).softmax(-1)


class Ranker(nn.Module):
    """A recommender like DLRM: embeddings and dense numbers, their pairwise products."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 8) for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, dense, sparse):
        low = self.dense(dense)
        rows = torch.stack([low, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        i, j = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([low, products[:, i, j]], 1))


class Vae(nn.Module):
    """A convolutional autoencoder's mean path, whose decoder is DCGAN's."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), nn.ELU())
        self.mean, self.spread = nn.Linear(16 * 49, 10), nn.Linear(16 * 49, 10)
        self.decode = nn.Sequential(
            nn.Linear(10, 16 * 49), nn.Unflatten(1, (16, 7, 7)), nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.InstanceNorm2d(8, affine=True), nn.SELU(), nn.ConvTranspose2d(8, 1, 3, 2, 1, output_padding=1),
            nn.Tanh(),
        )  # fmt: skip

    def forward(self, x):
        y = self.encode(x).flatten(1)
        return {"image": self.decode(self.mean(y)), "spread": self.spread(y).exp()}


class Yolo(nn.Module):
    """A one-stage detector: darknet body, route and upsample, boxes decoded with a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2), conv(16, 24, 3, 2))
        self.two, self.side = conv(24, 48, 3, 2), conv(48, 24, 1)
        self.low, self.high = nn.Conv2d(48, 14, 1), nn.Conv2d(48, 14, 1)

    def boxes(self, y):
        n, _, h, w = y.shape
        y = y.view(n, 2, 7, h, w).permute(0, 1, 3, 4, 2)
        grid = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy"), -1).to(y.dtype)
        centre = (y[..., :2].sigmoid() + grid) / torch.tensor([w, h])
        return torch.cat([centre, y[..., 2:4].exp().clamp(max=8.0), y[..., 4:].sigmoid()], -1).reshape(n, -1, 7)

    def forward(self, x):
        a = self.one(x)
        b = self.two(a)
        up = F.interpolate(self.side(b), scale_factor=2.0, mode="nearest")
        return torch.cat([self.boxes(self.low(b)), self.boxes(self.high(torch.cat([a, up], 1)))], 1)


def espcn() -> nn.Module:
    """Shi et al. 2016: super resolution by a pixel shuffle."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 8, 3, padding=1), nn.Tanh(),
        nn.Conv2d(8, 9, 3, padding=1), nn.PixelShuffle(3),
    )  # fmt: skip


class Seq2Seq(nn.Module):
    """`nn.Transformer` with a causal target mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(99, 32)
        self.body = nn.Transformer(32, 4, 2, 2, 64, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 99)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        return self.head(self.body(self.embed(src), self.embed(tgt), tgt_mask=mask, tgt_is_causal=True))


class Crnn(nn.Module):
    """Shi et al. 2015: a convolutional body whose columns a bidirectional LSTM reads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(1, 8), nn.MaxPool2d(2), conv(8, 16), nn.MaxPool2d((2, 1), (2, 1)), conv(16, 24))
        self.cell = nn.LSTM(24 * 4, 20, 2, bidirectional=True)
        self.head = nn.Linear(40, 11)

    def forward(self, x):
        y = self.body(x)
        y = y.flatten(1, 2).permute(2, 0, 1)
        return self.head(self.cell(y)[0]).log_softmax(2)


def encoder() -> nn.Module:
    """`nn.TransformerEncoder`, post-norm."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS = [
    Network("mobilenet_v1", mobilenet_v1, floats(3, 64, 64, name="input"), quick=True),
    Network("unet", UNet, image(32, 1)),
    Network("unet_bilinear", lambda: UNet(interpolate=True), image(36, 1)),
    Network("unet_3d", lambda: UNet(3), floats(1, 8, 8, 8), quick=True),
    Network("lstm_tagger", lambda: Recurrent(nn.LSTM, False), tokens(), quick=True),
    Network("gru_classifier", lambda: Recurrent(nn.GRU, True), tokens(), quick=True),
    Network("bilstm_classifier", lambda: Recurrent(nn.LSTM, True, num_layers=2, bidirectional=True), tokens()),
    Network("rnn_tagger", lambda: Recurrent(nn.RNN, False, nonlinearity="relu"), tokens()),
    Network("crnn", Crnn, floats(1, 16, 24)),
    Network("tcn", Tcn, floats(8, 30)),
    Network("wavenet", WaveNet, floats(1, 64)),
    Network("text_cnn", TextCnn, tokens()),
    Network("mlp_mixer", Mixer, image()),
    Network("pointnet", PointNet, floats(3, 50)),
    Network("gcn", Gcn, lambda n: {"x": torch.randn(n, 9, 8), "edges": torch.randn(n, 9, 9)}),
    Network("dlrm", Ranker, lambda n: {"dense": torch.randn(n, 5), "sparse": torch.randint(50, (n, 3))}),
    Network("vae", Vae, image(28, 1)),
    Network("yolo", Yolo, image()),
    Network("espcn", espcn, floats(1, 16, 20, name="input")),
    Network("transformer_encoder", encoder, floats(10, 32, name="src")),
    Network(
        "seq2seq_transformer", Seq2Seq, lambda n: {"src": torch.randint(99, (n, 9)), "tgt": torch.randint(99, (n, 7))}
    ),
]
