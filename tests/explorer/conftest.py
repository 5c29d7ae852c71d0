import pytest
from explorer_fixtures import client_of, tiny_gallery
from fastapi.testclient import TestClient

from hyla.explorer.gallery import Gallery


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return tiny_gallery()


@pytest.fixture(scope="module")
def client(gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return client_of(gallery, tmp_path_factory.mktemp("runs"))
