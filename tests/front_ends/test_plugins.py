"""Modules of the user: models that --model names, and what --plugin registers, also in worker processes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vitreous
from vitreous.bench.plan import ModelSpec
from vitreous.bench.plan_parser import plan_from_flags
from vitreous.bench.work_cells import PlanJob
from vitreous.cli.main import main
from vitreous.core import plugins
from vitreous.core.defaults import MODEL_SOURCES
from vitreous.mapping.job import MapJob
from vitreous.methods.method import METHODS
from vitreous.models.model_registry import SOURCES

MODELS = """
import timm
import vitreous

def build(depth=2):
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=3, img_size=32, depth=depth)

built = build()
described = vitreous.wrap(build(), classes=("a", "b", "c"))
number = 3

def fails():
    raise RuntimeError("no such weights")

def returns_text():
    return "model"

@vitreous.method("own", family="Baseline", formula="s", fold=vitreous.last, mixing=True, attention=True, signed=False, class_specific=False)
def own(layer):
    return layer.attention.mean(dim=1)
"""
PLAIN = ["--mean", "0.5", "--std", "0.5"]


@pytest.fixture
def home(tmp_path, monkeypatch, request):
    """The current folder, with a module of models; its name is unique, since modules stay imported."""
    name = f"models_{request.node.name.split('[')[0][-24:]}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    Image.new("RGB", (40, 40), (200, 30, 30)).save(tmp_path / "red.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    loaded = dict(plugins.LOADED)
    plugins.LOADED.clear()
    yield name
    plugins.LOADED.clear()
    plugins.LOADED.update(loaded)
    METHODS.discard("own")
    sys.modules.pop(name, None)


def test_a_model_of_a_module_or_a_file_is_explained(home, subtests, capsys):
    for number, model in enumerate((f"{home}:build", f"{home}.py:build", f"{home}:built", f"{home}:described")):
        with subtests.test(model):
            flags = ["--method", "own", "--json", "--out", f"out{number}"]
            assert main(["explain", "red.png", "--model", model, *PLAIN, *flags]) == 0
            (record,) = json.loads(capsys.readouterr().out)["images"]
            assert len(record["top"]) == 3


def test_builder_arguments_and_checkpoints_reach_a_model_of_a_module(home):
    from safetensors.torch import save_file

    module = plugins.load_plugin(home)
    weights = {name: value + 1 for name, value in module.build(depth=3).state_dict().items()}
    save_file(weights, "weights.safetensors")
    vit = vitreous.load(f"{home}:build", "weights.safetensors", depth=3)

    assert vit.depth == 3
    assert vit.name == f"{home}:build"
    assert vit.module.state_dict()["cls_token"].equal(weights["cls_token"])


def test_models_of_modules_that_do_not_work_are_refused(home, subtests, capsys):
    Path("broken_module.py").write_text("import no_such_package\n")
    cases = {
        f"{home}:buidl": f"the module {home!r} has no 'buidl'; did you mean 'built'?",
        f"{home}:number": "is 'int'; a function, a class or an nn.Module would work",
        f"{home}:fails": "could not build a model (RuntimeError: no such weights)",
        f"{home}:returns_text": "returned 'str', not an nn.Module",
        "nowhere.py:build": "no Python file 'nowhere.py'",
        "broken_module:build": "'broken_module' stopped with ModuleNotFoundError: No module named 'no_such_package'",
        "json.py:build": "no Python file 'json.py'",
        "no_such_module:build": "no source 'no_such_module'",
    }
    for model, sentence in cases.items():
        with subtests.test(model):
            assert main(["explain", "red.png", "--model", model, *PLAIN]) == 2
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert sentence in said


def test_a_file_with_the_name_of_another_module_is_refused(home):
    Path("json.py").write_text("")
    with pytest.raises(vitreous.DataError, match="has the name of another module, 'json'"):
        plugins.load_plugin("json.py")


def test_only_modules_that_the_user_named_are_imported():
    """Names of models are also read from files, which must not choose what is imported."""
    with pytest.raises(vitreous.ModelError, match=r"no source 'antigravity'.*--plugin antigravity"):
        vitreous.load("antigravity:fly")
    assert "antigravity" not in sys.modules


def test_the_command_line_knows_the_sources_of_this_package():
    assert sorted(name for name in SOURCES if is_built_in_source(name)) == sorted(MODEL_SOURCES)


def is_built_in_source(name: str) -> bool:
    return SOURCES.owner(name).startswith("vitreous.")


def test_every_verb_imports_plugins(home, subtests, capsys):
    from vitreous.cli.main import VERBS

    for verb in VERBS:
        with subtests.test(verb):
            assert main([verb, "--help"]) == 0
            assert "--plugin" in capsys.readouterr().out
    assert main(["methods", "own", "--plugin", f"{home}.py"]) == 0
    assert "own" in capsys.readouterr().out


@pytest.mark.slow
def test_other_processes_import_plugins_with_a_job(home, tmp_path):
    """Workers, and those of Ray, unpickle a job; a module of the current folder is found although they are elsewhere."""
    plugins.load_plugin(home)
    plan = plan_from_flags(
        models=[f"{home}:build"], datasets=["scenes:single?count=2"], methods=["own"], metrics=["sparseness"]
    )
    jobs = pickle.dumps([PlanJob(plan), MapJob(ModelSpec(f"{home}:build"), "scenes:single?count=2", ("own",))])
    (tmp_path / "jobs").write_bytes(jobs)
    program = f"""
import pathlib, pickle, vitreous
plan_job, map_job = pickle.loads(pathlib.Path({str(tmp_path / "jobs")!r}).read_bytes())
print(plan_job.columns[0][0].spec, map_job.methods, vitreous.load(map_job.model.name).depth)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd="/", capture_output=True, text=True, check=False)

    assert run.stdout.split() == ["own", "('own',)", "2"], run.stderr


@pytest.mark.slow
def test_workers_run_models_and_methods_of_a_module(home, capsys):
    flags = ["--data", "scenes:single?count=4", "--method", "own", "--metric", "sparseness", "--slice", "2"]
    assert (
        main(["bench", "--model", f"{home}:build", *PLAIN, *flags, "--workers", "2", "--device", "cpu", "--json"]) == 0
    )
    (column,) = json.loads(capsys.readouterr().out)["columns"]

    assert column["model"] == f"{home}:build"
    assert column["entries"][0]["rows"] == 4
    assert (
        main(["map", "scenes:single?count=4", "--model", f"{home}:build", *PLAIN, "-x", "own", "-w", "2", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["new_maps"] == 4


@pytest.mark.slow
def test_an_edited_builder_of_a_model_is_noticed(home, tmp_path, capsys):
    """Each command in a process of its own, as modules stay imported."""
    file = tmp_path / "edited.py"
    source = "import timm, torch\nSEED = 0\n\ndef build():\n    torch.manual_seed(SEED)\n"
    source += "    return timm.create_model('vit_tiny_patch16_224', num_classes=3, img_size=32, depth=1)\n"

    def count_new_rows() -> str:
        command = [
            sys.executable,
            "-m",
            "vitreous",
            "bench",
            "--model",
            "edited.py:build",
            "--data",
            "scenes:single?count=2",
        ]
        command += [
            "--size",
            "32",
            *PLAIN,
            "--method",
            "ixg",
            "--metric",
            "sparseness",
            "--out",
            "run",
            "--device",
            "cpu",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return (done.stdout + done.stderr).strip().splitlines()[-1]

    file.write_text(source)
    assert count_new_rows() == "4 new rows; results in run"
    assert count_new_rows() == "nothing new; results in run"
    file.write_text(source.replace("SEED = 0", "SEED = 5"))
    assert count_new_rows() == "4 new rows; results in run"
