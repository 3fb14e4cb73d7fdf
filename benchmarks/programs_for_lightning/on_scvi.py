# scvi-tools
import anndata
import numpy as np
import scvi

counts = np.random.default_rng(0).poisson(2.0, (128, 30)).astype("float32")
cells = anndata.AnnData(counts)
cells.obs["batch"] = ["a", "b"] * 64
scvi.settings.seed = 0
scvi.model.SCVI.setup_anndata(cells, batch_key="batch")
model = scvi.model.SCVI(cells, n_latent=4)
model.train(max_epochs=3, accelerator="cpu", early_stopping=True, enable_progress_bar=False)
print(model.get_latent_representation().sum())
