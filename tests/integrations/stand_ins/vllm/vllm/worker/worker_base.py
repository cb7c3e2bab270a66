class WorkerWrapperBase:
    def __init__(self):
        self.worker = None

    def init_worker(self, model_config):
        from vllm.v1.worker.gpu_worker import Worker

        self.worker = Worker(model_config)

    def __getattr__(self, attr):
        return getattr(self.worker, attr)
