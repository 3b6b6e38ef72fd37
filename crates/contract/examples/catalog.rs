//! Prints the task catalog with the JSON Schemas of every task's parameters and output.

fn main() -> Result<(), serde_json::Error> {
    serde_json::to_writer_pretty(std::io::stdout().lock(), &gpuaas_contract::schema::catalog())
}
