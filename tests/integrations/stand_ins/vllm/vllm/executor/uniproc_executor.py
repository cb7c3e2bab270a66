from vllm.worker.worker_base import WorkerWrapperBase


class ExecutorWithExternalLauncher:
    def __init__(self, model_config):
        self.driver_worker = WorkerWrapperBase()
        self.driver_worker.init_worker(model_config)
        self.collective_rpc("load_model")

    def collective_rpc(self, method, args=()):
        if callable(method):
            return [method(self.driver_worker, *args)]
        return [getattr(self.driver_worker, method)(*args)]

    def apply_model(self, func):
        return self.collective_rpc(lambda worker: func(worker.get_model()))
