"""Tables of codes: choosing, joining, and the way to disk and back."""

import numpy as np
import pytest
import torch

from hyla.latents import CodeTable, read_codes, record_codes, stream_codes, write_codes
from hyla.latents.table import concatenate
from hyla.nn import Transformer, TransformerConfig


def table(layer: int = 0, heads: int = 3, instances: int = 4, pairs: int = 2) -> CodeTable:
    size = instances * pairs
    codes = np.random.default_rng(layer).normal(size=(size, heads)).astype(np.float32)
    return CodeTable(
        codes=codes,
        columns={
            "layer": np.full(size, layer),
            "kind": np.full(size, "self"),
            "instance": np.arange(instances).repeat(pairs),
            "query": np.full(size, 5),
            "key": np.tile(np.arange(pairs), instances),
            "rule": np.array(["a", "b"])[np.arange(instances).repeat(pairs) % 2],
        },
    )


def assert_same(got: CodeTable, want: CodeTable):
    np.testing.assert_array_equal(got.codes, want.codes)
    assert got.columns.keys() == want.columns.keys()
    for name, column in want.columns.items():
        np.testing.assert_array_equal(got[name], column)
    assert (got.residual is None) == (want.residual is None)
    if want.residual is not None:
        np.testing.assert_array_equal(got.residual, want.residual)


def test_choosing_rows():
    both = concatenate([table(0, heads=3), table(1, heads=2)])
    assert both.codes.shape == (16, 3)
    assert np.isnan(both.codes[8:, 2]).all()
    assert both.layers == [0, 1]
    assert_same(both.where(layer=1), table(1, heads=2))
    assert len(both.where(layer=[0, 1], rule="a", key=0)) == 4
    assert both.labels == ("rule",)


def test_choosing_what_is_not_there_says_what_is():
    both = concatenate([table(0), table(1)])
    with pytest.raises(
        KeyError, match=r"no column 'rul' \(did you mean 'rule'\?\), only \['layer'"
    ):
        both.where(rul="a")
    with pytest.raises(KeyError, match="no column 'code'"):
        both["code"]
    with pytest.raises(ValueError, match=r"no row has layer=9; there are 0, 1$"):
        both.where(layer=9)
    many = both.with_columns(token=np.array([f"token{i:02}" for i in range(16)]))
    with pytest.raises(ValueError, match=r"\(did you mean 'token03'\?\); .*'token11', \.\.\.$"):
        many.where(token="tokn03")
    assert len(both.where(layer=[1, 9])) == 8
    # Each value is there, though not together: an answer, and not a mistake.
    assert len(both.where(instance=0, rule="b")) == 0
    assert len(both.where(instance=0, rule="b").where(layer=9)) == 0


def test_a_table_is_short_when_printed():
    both = concatenate([table(0, instances=4000), table(1, instances=4000)])
    assert repr(both) == "CodeTable(16,000 codes of 3 coordinates, layers [0, 1], labels ['rule'])"


def test_a_table_for_pandas():
    frame = table().to_pandas()
    assert list(frame) == [*table().columns, "code 0", "code 1", "code 2"]
    np.testing.assert_array_equal(frame[["code 0", "code 1", "code 2"]], table().codes)
    assert frame["rule"].tolist() == table()["rule"].tolist()


def test_pairs_are_joined_for_each_instance():
    shuffled = table().rows(np.random.default_rng(1).permutation(8))
    joined = shuffled.joined_pairs()
    assert joined.codes.shape == (4, 6)
    np.testing.assert_array_equal(joined.codes[0], table().codes[:2].reshape(-1))
    assert joined["rule"].tolist() == ["a", "b", "a", "b"]
    assert len(table().separate_pairs().joined_pairs()) == 8


def test_what_cannot_be_joined():
    with pytest.raises(ValueError, match="choose one layer first"):
        concatenate([table(0), table(1)]).joined_pairs()
    with pytest.raises(ValueError, match="different numbers of pairs"):
        table().rows(np.arange(7)).joined_pairs()


@pytest.mark.parametrize("suffix", [".parquet", ".safetensors"])
def test_files_give_back_what_was_written(tmp_path, suffix):
    wide = table(0).with_columns(target=np.linspace(0, 1, 8))
    narrow = table(1, heads=2).with_columns(target=np.zeros(8))
    both = concatenate([wide, narrow])
    path = tmp_path / f"codes{suffix}"
    write_codes(both, path)
    assert_same(read_codes(path), both)
    assert_same(read_codes(path, layer=1), narrow)
    with pytest.raises(ValueError, match="there are 0, 1"):
        read_codes(path, layer=9)
    with pytest.raises(KeyError, match="did you mean 'layer'"):
        read_codes(path, layers=1)
    with_residual = CodeTable(
        codes=wide.codes, columns=wide.columns, residual=np.ones((8, 5), dtype=np.float32)
    )
    write_codes(with_residual, path)
    assert_same(read_codes(path), with_residual)


def test_a_stream_is_written_batch_by_batch(tmp_path):
    config = TransformerConfig(
        input_dim=5,
        output_dim=3,
        sequence_length=7,
        embed_dim=8,
        qk_dim=8,
        v_dim=8,
        mlp_dim=8,
        num_heads=4,
        num_layers=2,
    )
    model, batches = Transformer(config), torch.randn(6, 7, 5).split(2)
    labels = {"rule": list("abcabc")}
    path = tmp_path / "deep" / "codes.parquet"
    write_codes(stream_codes(model, batches, labels=labels), path)
    assert_same(read_codes(path), record_codes(model, batches, labels=labels))

    import pyarrow.parquet

    assert pyarrow.parquet.ParquetFile(path).num_row_groups == 3


def test_an_interrupted_stream_leaves_no_file(tmp_path):
    def broken():
        yield table()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_codes(broken(), tmp_path / "codes.parquet")
    assert list(tmp_path.iterdir()) == []


def test_errors_say_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="needs the column 'kind'"):
        CodeTable(codes=np.zeros((1, 2), np.float32), columns={"layer": np.zeros(1)})
    with pytest.raises(ValueError, match=r"\.parquet or \.safetensors"):
        write_codes(table(), tmp_path / "codes.csv")
    with pytest.raises(FileNotFoundError, match="no such file of codes"):
        read_codes(tmp_path / "nothing.parquet")
    with pytest.raises(ValueError, match="no codes to write"):
        write_codes([], tmp_path / "codes.parquet")
