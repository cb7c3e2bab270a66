from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class Worker:
    def __init__(self, model_config):
        self.model_runner = GPUModelRunner(model_config)

    def load_model(self):
        self.model_runner.load_model()

    def get_model(self):
        return self.model_runner.get_model()

    def determine_available_memory(self):
        """Runs the model once, which is when it is compiled."""
        self.model_runner.execute_model([[0, 0]])
