import importlib, math, os, pytest, traceback
from pathlib import Path
from snugfit.recipe import load_recipe
from tests.unit.tasks.devices import planned_for_a_gpu, without_float64
CASES={"segmentation":"shapes.yaml","sentence_embedding":"recipe.yaml","seq2seq":"recipe.yaml","masked_lm":"recipe.yaml","forecasting":"loads.yaml","preference":"taste.yaml","token_classification":"names.yaml","contrastive_pretraining":None,"text_regression":"recipe.yaml"}
def get(name, tmp_path, monkeypatch):
    m=importlib.import_module(f"tests.unit.tasks.test_{name}")
    f=m.project.__wrapped__ if hasattr(m.project,'__wrapped__') else m.project._fixture_function
    if name=="preference":
        class F:
            def mktemp(self,n): return tmp_path
        p=f(F())
    else: p=f(tmp_path,monkeypatch)
    monkeypatch.chdir(tmp_path)
    return p
@pytest.mark.parametrize("name",[n for n,v in CASES.items() if v])
def test_float(name,tmp_path,monkeypatch):
    get(name,tmp_path,monkeypatch)
    s=without_float64(load_recipe(Path(CASES[name]),["plan.micro_batch=null"]))
    print(name,s)
@pytest.mark.parametrize("name",[n for n,v in CASES.items() if v])
def test_gpu(name,tmp_path,monkeypatch):
    get(name,tmp_path,monkeypatch)
    a=planned_for_a_gpu(load_recipe(Path(CASES[name]),["plan.device=auto","plan.micro_batch=null"]))
    print(name,a.fits,a.prediction.peak_bytes); assert a.fits
